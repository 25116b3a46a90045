"""A prompt whose caches come back from a KV connector is answered as Hugging Face does, for every kind of connector."""

import pytest

pytestmark = pytest.mark.thorough

BLOCK = 32
ENGINE = {"block_size": BLOCK, "max_num_batched_tokens": 2048}
PARTS = ENGINE | {"max_num_batched_tokens": 64}  # every longer prompt comes in parts
LAYERWISE = {"kv_connector": "LayerwiseConnector", "kv_connector_module_path": "connectors"}
DEAF = {"kv_connector_extra_config": {"deaf_to": "swiftkv_cache"}}
OFFLOADING = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "CopyingSpec",
        "spec_module_path": "connectors",
        "cpu_bytes_to_use": 2**26,
    },
}


@pytest.fixture(scope="module")
def folder(checkpoint):
    return checkpoint("llama", 4, 4)


@pytest.fixture(scope="module")
def answers(engines, folder, eight, tmp_path_factory):
    """By name: prompts computed and saved by one engine, then loaded by the next."""
    example = {
        "kv_connector": "ExampleConnector",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path_factory.mktemp("shared"))},
    }

    def case(connector, role, engine=ENGINE):
        transfer = connector | {"kv_role": role}
        case = {"model": folder, "engine": engine | {"kv_transfer_config": transfer}, "runs": [{"prompts": eight}]}
        return case | {"connector": "connectors.LayerwiseConnector"}

    offloading = ENGINE | {"enable_prefix_caching": True, "kv_transfer_config": OFFLOADING}
    cases = {
        "example, saves": case(example, "kv_producer"),
        "example, loads": case(example, "kv_consumer"),
        "layer-wise, saves in parts": case(LAYERWISE, "kv_producer", PARTS),
        "layer-wise, loads": case(LAYERWISE, "kv_consumer"),
        "layer-wise, deaf to owners": case(LAYERWISE | DEAF, "kv_consumer"),
        "offloading": {
            "model": folder,
            "engine": offloading,
            "runs": [{"prompts": eight}, {"prompts": eight, "forget": True}],
        },
    }
    return dict(zip(cases, engines(list(cases.values())), strict=True))


def whole_blocks(prompts):
    return [(len(prompt) - 1) // BLOCK * BLOCK for prompt in prompts]


@pytest.mark.parametrize("kind", ["example", "layer-wise", "offloading"])
def test_restored_prompts_are_answered_as_computed_ones(answers, compare, folder, eight, kind):
    runs = [
        run
        for name, answer in answers.items()
        if name.startswith(kind) and "deaf" not in name
        for run in answer["runs"]
    ]
    saved, loaded = runs
    for run in runs:
        compare(folder, eight, run)
    assert max(saved["cached"]) <= BLOCK and loaded["cached"] == whole_blocks(eight)


def test_an_owner_that_is_not_announced_is_noticed(answers, eight):
    answer = answers["layer-wise, deaf to owners"]["runs"][0]
    assert answer["cached"] == whole_blocks(eight)
    assert answer["tokens"] != answers["layer-wise, loads"]["runs"][0]["tokens"]
