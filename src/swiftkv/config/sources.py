"""Where models, checkpoints, chats and questions come from: each source is one of several forms, told by the key it has."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from swiftkv.section import Count, HubId, Section, Text, Whole, by_key


class Hub(Section, called="a hub source"):
    """A Hugging Face hub repository."""

    hub: HubId
    revision: Text = Field(default="main", description="Branch, tag or commit; the commit it resolved to is recorded.")


class HubModel(Hub, called="a hub source"):
    """A model of the hub."""

    gated: bool = Field(
        default=False,
        description="Whether the hub asks to accept a license first; for plans and checks, not for the download.",
    )


class LocalModel(Section, called="a local source"):
    """A checkpoint folder, or one with a tokenizer."""

    local: Text = Field(description="A folder on this machine.")


class Random(Section, called="random"):
    """Random weights instead, in this shape; what is not said is the file's."""

    nullable = frozenset({"q_lora_rank"})
    hidden_size: Whole | None = Field(default=None, description="Width of the residual stream.")
    intermediate_size: Whole | None = Field(default=None, description="Width of the feed-forward layers.")
    num_hidden_layers: Whole | None = Field(default=None, description="L, the number of decoder layers.")
    num_attention_heads: Whole | None = Field(default=None, description="Query heads of a layer.")
    num_key_value_heads: Whole | None = Field(default=None, description="Key/value heads of a layer.")
    head_dim: Whole | None = Field(default=None, description="Width of a head.")
    model_type: Literal["deepseek_v2"] | None = Field(
        default=None,
        description="Another architecture than the file's, which then gives the tokenizer and no sizes.",
    )
    q_lora_rank: Whole | None = Field(
        default=None, description="DeepSeek-V2: width of the queries' latent; null: they have none."
    )
    kv_lora_rank: Whole | None = Field(
        default=None, description="DeepSeek-V2: width of the latent that keys and values are made of."
    )
    qk_nope_head_dim: Whole | None = Field(
        default=None, description="DeepSeek-V2: elements of a query or key head without RoPE."
    )
    qk_rope_head_dim: Whole | None = Field(
        default=None, description="DeepSeek-V2: elements with RoPE; those of the key are one head for all."
    )
    v_head_dim: Whole | None = Field(default=None, description="DeepSeek-V2: width of a value head.")
    n_routed_experts: Whole | None = Field(
        default=None, description="DeepSeek-V2: experts of a layer that tokens are routed to."
    )
    n_shared_experts: Whole | None = Field(
        default=None, description="DeepSeek-V2: experts of a layer that every token goes through."
    )
    num_experts_per_tok: Whole | None = Field(
        default=None, description="DeepSeek-V2: routed experts a token goes through."
    )
    moe_intermediate_size: Whole | None = Field(default=None, description="DeepSeek-V2: width of an expert.")
    first_k_dense_replace: Count | None = Field(
        default=None, description="DeepSeek-V2: layers without experts, the first ones."
    )
    max_position_embeddings: Whole | None = Field(default=None, description="Longest sequence in tokens.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("must not be empty")
        heads, shared = self.num_attention_heads, self.num_key_value_heads
        if heads and shared and heads % shared:
            raise ValueError(f"{heads} attention heads cannot share {shared} key/value heads evenly")
        return self


class PackagedModel(Section, called="a source in a package"):
    """A GGUF file of an installed Python distribution."""

    package: Text = Field(description="Name of an installed Python distribution.")
    gguf: Text = Field(description="Path of a GGUF file in that distribution.")
    random: Random | None = Field(default=None, description="Random weights instead, in this shape.")


ModelSource = Annotated[
    HubModel | PackagedModel | LocalModel, by_key(hub=HubModel, package=PackagedModel, local=LocalModel)
]
# A SwiftKV checkpoint in the published format, or a model whose chat template is taken.
CheckpointSource = Annotated[HubModel | LocalModel, by_key(hub=HubModel, local=LocalModel)]


class Chats(Section):
    """One origin of chats: whole chats, or two Jinja templates over a record's fields."""

    record: Text | None = Field(
        default=None, description="Field of each JSON line that holds the record, if it is not the line itself."
    )
    chats: Literal["messages", "sharegpt"] | None = Field(
        default=None, description="Records are whole chats: `messages` (role, content) or `sharegpt` (from, value)."
    )
    user: Text | None = Field(default=None, description="Jinja template of the user's message.")
    assistant: Text | None = Field(default=None, description="Jinja template of the assistant's answer.")
    limit: Whole | None = Field(default=None, description="Take at most this many chats.")
    distinct_characters: Whole | None = Field(
        default=None,
        description="Of the chats whose first so many characters agree, the mix has one; absent: all are kept.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        templates = (self.user is not None) + (self.assistant is not None)
        if templates == 1 or (templates == 2) == (self.chats is not None):
            raise ValueError("needs either chats, or the two templates user and assistant")
        return self


class HubChats(Chats, Hub, called="a hub source of chats"):
    """Chats of a hub data set."""

    name: Text | None = Field(default=None, description="Short name recorded with each chat; the id without it.")
    subset: Text | None = Field(default=None, description="Configuration name of the hub data set.")
    split: Text = Field(description="Split of the hub data set.")


class PackagedChats(Chats, called="a source of chats in a package"):
    """Chats of files in an installed distribution."""

    name: Text = Field(description="Short name recorded with each chat.")
    package: Text = Field(description="Name of an installed Python distribution.")
    file: Text = Field(description="Arrow, JSON-lines or gzipped JSON-lines files in it; wildcards allowed.")


class LocalChats(Chats, called="a local source of chats"):
    """Chats of a file."""

    name: Text = Field(description="Short name recorded with each chat.")
    local: Text = Field(description="An Arrow, JSON-lines or gzipped JSON-lines file on this machine.")


ChatSource = Annotated[
    HubChats | PackagedChats | LocalChats, by_key(hub=HubChats, package=PackagedChats, local=LocalChats)
]


class HubQuestions(Hub, called="a hub source of questions"):
    """The hub data set a task asks."""

    optional: bool = Field(
        default=False, description="An unreachable hub leaves the cell empty, with the reason, instead of stopping."
    )


class Questions(Section):
    """Files with a task's questions."""

    splits: dict[Text, Text] = Field(
        min_length=1,
        description="For each split one .arrow or .jsonl.gz file; `{dataset_name}` stands for the MMLU subject.",
    )
    columns: dict[Text, Text] | None = Field(
        default=None,
        description="Columns that the lm-eval task reads and the files lack, as Jinja templates over a record.",
    )


class PackagedQuestions(Questions, called="a source of questions in a package"):
    """Questions in an installed distribution."""

    package: Text = Field(description="Installed distribution that ships the questions.")


class LocalQuestions(Questions, called="a local source of questions"):
    """Questions in a folder."""

    local: Text = Field(description="Folder with the questions.")


QuestionSource = Annotated[
    HubQuestions | PackagedQuestions | LocalQuestions,
    by_key(hub=HubQuestions, package=PackagedQuestions, local=LocalQuestions),
]
