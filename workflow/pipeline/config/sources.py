"""Where models, checkpoints, chats and questions come from: each source is one of several forms, told by the key it has."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Tag, model_validator

from pipeline import shipped
from swiftkv.section import Count, HubId, Section, Text, Whole, by_key, key


class Hub(Section):
    """A Hugging Face hub repository."""

    hub: HubId
    revision: Text = key("Branch, tag or commit; the commit it resolved to is recorded.", "main")


class HubModel(Hub):
    """A model of the hub."""

    gated: bool = key("Whether the hub asks to accept a license first; for plans and checks only.", False)


class LocalModel(Section):
    """A checkpoint folder, or one with a tokenizer."""

    # A lambda, as pydantic would pass a second argument.
    local: Annotated[Text, AfterValidator(lambda path: shipped(path))] = key("A folder on this machine.")


class Shape(Section):
    """Dimensions of random weights, as config.json names them; what is absent is as in the packaged model."""

    model_type: Literal["deepseek_v2"] | None = key("Another architecture, whose sizes are all to be stated.", None)
    hidden_size: Count | None = None
    intermediate_size: Count | None = None
    num_hidden_layers: Count | None = None
    num_attention_heads: Count | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    max_position_embeddings: Count | None = None
    # DeepSeek-V2's
    q_lora_rank: Count | None = None
    kv_lora_rank: Count | None = None
    qk_nope_head_dim: Count | None = None
    qk_rope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    n_routed_experts: Count | None = None
    n_shared_experts: Count | None = None
    num_experts_per_tok: Count | None = None
    moe_intermediate_size: Count | None = None
    first_k_dense_replace: Count | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        heads, shared = self.num_attention_heads, self.num_key_value_heads
        if heads and shared and heads % shared:
            raise ValueError(f"{heads} attention heads cannot share {shared} key/value heads evenly")
        return self


class PackagedModel(Section):
    """A GGUF file of an installed Python distribution."""

    package: Text = key("Name of an installed Python distribution.")
    gguf: Text = key("Path of a GGUF file in that distribution.")
    random: Shape | None = key("Random weights of this shape instead.", None)


HUB, PACKAGE, LOCAL = Tag("[hub]"), Tag("[package]"), Tag("[local]")
ANYWHERE = by_key("hub", "package", "local")
ModelSource = Annotated[
    Annotated[HubModel, HUB] | Annotated[PackagedModel, PACKAGE] | Annotated[LocalModel, LOCAL], ANYWHERE
]
# A SwiftKV checkpoint in the published format, or a model whose chat template is taken.
CheckpointSource = Annotated[Annotated[HubModel, HUB] | Annotated[LocalModel, LOCAL], by_key("hub", "local")]


class Chats(Section):
    """One origin of chats: whole chats, or two Jinja templates over a record's fields."""

    record: Text | None = key("Field of each JSON line that holds the record, if it is not the line itself.", None)
    chats: Literal["messages", "sharegpt"] | None = key("Whole chats: (role, content), or (from, value).", None)
    user: Text | None = key("Jinja template of the user's message.", None)
    assistant: Text | None = key("Jinja template of the assistant's answer.", None)
    limit: Whole | None = key("Take at most this many chats.", None)
    distinct_characters: Whole | None = key("Of chats that agree in so many first characters one is kept.", None)

    @model_validator(mode="after")
    def _check(self) -> Self:
        templates = (self.user is not None) + (self.assistant is not None)
        if templates == 1 or (templates == 2) == (self.chats is not None):
            raise ValueError("needs either chats, or the two templates user and assistant")
        return self


class HubChats(Chats, Hub):
    """Chats of a hub data set."""

    name: Text | None = key("Short name recorded with each chat; the id without it.", None)
    subset: Text | None = key("Configuration name of the hub data set.", None)
    split: Text = key("Split of the hub data set.")


class PackagedChats(Chats):
    """Chats of files in an installed distribution."""

    name: Text = key("Short name recorded with each chat.")
    package: Text = key("Name of an installed Python distribution.")
    file: Text = key("Arrow, JSON-lines or gzipped JSON-lines files in it; wildcards allowed.")


class LocalChats(Chats):
    """Chats of a file."""

    name: Text = key("Short name recorded with each chat.")
    local: Text = key("An Arrow, JSON-lines or gzipped JSON-lines file on this machine.")


ChatSource = Annotated[
    Annotated[HubChats, HUB] | Annotated[PackagedChats, PACKAGE] | Annotated[LocalChats, LOCAL], ANYWHERE
]


class HubQuestions(Hub):
    """The hub data set a task asks."""

    optional: bool = key("An unreachable hub leaves the cell empty, with the reason, instead of stopping.", False)


class Questions(Section):
    """Files with a task's questions."""

    splits: dict[Text, Text] = key(
        "A split's .arrow or .jsonl.gz file; `{dataset_name}`: MMLU's subject.", min_length=1
    )
    columns: dict[Text, Text] | None = key("Columns that lm-eval reads and the files lack, as Jinja templates.", None)


class PackagedQuestions(Questions):
    """Questions in an installed distribution."""

    package: Text = key("Installed distribution that ships the questions.")


class LocalQuestions(Questions):
    """Questions in a folder."""

    local: Text = key("Folder with the questions.")


QuestionSource = Annotated[
    Annotated[HubQuestions, HUB] | Annotated[PackagedQuestions, PACKAGE] | Annotated[LocalQuestions, LOCAL], ANYWHERE
]
