"""Random mistakes in the shipped configurations: each is answered by one sentence, or is known to be harmless."""

import copy
import functools
import random
import re

import pytest
from tests.unit import artifact_helpers

from pipeline.artifacts import contents
from pipeline.config import check
from swiftkv.errors import UserError

SEED, MUTATIONS = 18, 300


def places(value, path=()):
    """The path of everything below the top level."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, content in inner:
        yield (*path, key)
        yield from places(content, (*path, key))


def mutate(config, dice, place):
    """Change one place at random; returns what was done, where, what stood there and what now; None where nothing is done."""
    *path, key = place
    parent = functools.reduce(lambda section, step: section[step], path, config)
    value = parent[key]
    kind = dice.choice(["delete", "retype", "rename", "size", "form"])
    if kind == "delete":
        del parent[key]
    elif kind == "rename" and isinstance(parent, dict):
        parent[f"{key}x"] = parent.pop(key)
    elif kind == "rename" and isinstance(value, str):
        parent[key] = f"{value}x"
    elif kind == "retype":
        parent[key] = dice.choice([None, 3, "text", "", [], {}, [value], {"a": value}, True, -1.5])
    elif kind == "size" and isinstance(value, int | float) and not isinstance(value, bool):
        parent[key] = dice.choice([-value - 1, value * 10**12, float("nan"), float("inf"), value + 0.5, 0])
    elif kind == "form" and isinstance(value, list):
        parent[key] = dice.choice([dict.fromkeys(map(str, value)), str(value), value * 2, {}])
    elif kind == "form" and isinstance(value, dict):
        parent[key] = dice.choice([list(value), list(value.values()), str(value)])
    else:
        return None
    present = isinstance(parent, list) or key in parent
    return kind, place, value, parent[key] if present and kind != "delete" else None


# Of what can go without harm: an entry that nothing refers to, one of several in a list, and keys that need not be there.
ENTRY = re.compile(
    r"(artifacts|models|variants|recipes|data|tasks|roles|stand_ins|serving\.points|planning\.data|sets\.\w+"
    r"|.*\.(checkpoints|num_key_value_layers|splits|columns|random|shards|resources))\.[^/]+|.*\.\d+"
)
OPTIONAL = re.compile(
    r"architecture|assistant|backend|cards|chance|chat_template|checkpoints|chats|columns|dataset|distinct_characters"
    r"|early_exit|enforce_eager|gated|gradient_checkpointing|item|kv_heads|large_models|limit|local_cache|matrices"
    r"|max_gen_toks|memory_gib|merge_all_layers|min_requests|model_type|name|node_gpus|notes|optional|orders"
    r"|output_tokens|parts|plugin|published|quality|quantization|random|recipe|record|refine_steps"
    r"|revision|serve|serving|serving_weights|shards|similar_models|source|speculative|tasks|together"
    r"|unavailable|variants|warmups|prompt_lookup_min|prompt_lookup_max"
)
NULLABLE = {"kv_heads", "limit", "max_steps", "cpu_kv_cache_gib", "prefill_reduction", "q_lora_rank", "roles"}


def harmless(kind, path, old, new):
    """Whether a mutation may be accepted: the value is still of its type and size, or was not needed."""
    if isinstance(old, int | float) and isinstance(new, int | float) and isinstance(old, bool) == isinstance(new, bool):
        return -1 <= new < 10**11  # a mutation makes numbers 10^12 times larger; -1 is the last layer
    if isinstance(old, str) and isinstance(new, str):
        return new != ""
    if old is None and isinstance(new, int):  # a number where null may stand, too
        return path[-1] in NULLABLE
    if kind in ("delete", "rename") or new in (None, [], {}):
        return (
            OPTIONAL.fullmatch(str(path[-1])) or path[-1] in NULLABLE or bool(ENTRY.fullmatch(".".join(map(str, path))))
        )
    return False


@pytest.mark.parametrize("scale", ["", "local", "smoke"], ids=["paper", "local", "smoke"])
def test_every_mistake_is_one_sentence(scale):
    dice, answered, whole = random.Random(f"{SEED} {scale}"), 0, artifact_helpers.scale(scale)
    paths = list(places(whole))
    while answered < MUTATIONS // 3:
        config = copy.deepcopy(whole)
        if (mutation := mutate(config, dice, dice.choice(paths))) is None:
            continue
        answered += 1
        try:
            contents.check(check(config))
        except UserError as error:
            assert re.match("config[:,]|artifacts[.]", str(error)) and "\n" not in str(error), mutation
            assert not re.search("pydantic|validation error|Input should|something else", str(error)), mutation
        else:
            assert harmless(*mutation), mutation
