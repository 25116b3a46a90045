"""The serving section of the configuration: its engine and its points."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from swiftkv.section import (
    Count,
    Name,
    Positive,
    Rate,
    Section,
    Seed,
    Share,
    Text,
    Unique,
    Whole,
    key,
)

Rates = Annotated[list[Rate], Field(min_length=1), Unique]
Sizes = Annotated[list[Whole], Field(min_length=1), Unique]


class Engine(Section):
    """Settings of vLLM, the same for every variant."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = key(
        "Number format of weights and activations; `auto` is bfloat16 on GPUs and on processors that multiply it, float32 on "
        "others."
    )
    max_num_batched_tokens: Whole = key("Chunk of the chunked prefill.")
    max_num_seqs: Whole = key("Sequences that run at once.")
    enforce_eager: bool = key("Whether vLLM runs without compilation and graphs.")
    gpu_memory_utilization: Share = key("Share of each GPU's memory for weights, activations and KV cache.")
    cpu_kv_cache_gib: Positive | None = key("KV cache on a processor, in GB of 2^30 bytes; null where only GPUs serve.")
    start_timeout: Whole = key("Seconds a server may take until it answers.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"a step of max_num_batched_tokens = {self.max_num_batched_tokens} cannot hold a token of each of "
                f"max_num_seqs = {self.max_num_seqs} sequences"
            )
        return self

    @property
    def of_a_run(self) -> dict[str, Any]:
        """Return the settings that change numbers: all but `start_timeout`."""
        return self.model_dump(exclude={"start_timeout"})


class PointSettings(Section):
    """What one point measures; each artifact says on which models and variants."""

    enforce_eager: bool | None = key("Replaces serving.engine.enforce_eager here.", None)
    memory_gib: Positive | None = key(
        "GB of 2^30 bytes for weights, KV cache and, on a GPU, activations.",
        None,
    )

    def fit(self, engine: Engine, output_tokens: int) -> None:
        """Refuse a point that an engine cannot run.

        Args:
            engine: the settings that all points share.
            output_tokens: of a request, where the point has none of its own.

        Raises:
            ValueError: the sentence without the place.
        """


class Requests(PointSettings):
    """A point with requests of one length."""

    input_tokens: Whole = key("Prompt length.")
    output_tokens: Whole | None = key("Replaces serving.output_tokens for this point.", None)


class ThroughputSettings(Requests):
    """All requests at once."""

    measure: Literal["throughput"]
    total_tokens: Whole = key("Input and output tokens of all requests together.")
    warmups: Count = key("Requests before each measurement.", 1)
    repeats: Whole = key("Measurements.", 1)

    def fit(self, engine: Engine, output_tokens: int) -> None:
        output_tokens = self.output_tokens or output_tokens
        if self.total_tokens < self.input_tokens + output_tokens:
            raise ValueError(
                f"total_tokens = {self.total_tokens} is less than one request of {self.input_tokens} input and "
                f"{output_tokens} output tokens"
            )


class Speculative(Section):
    """vLLM's --speculative-config."""

    method: Literal["ngram"] = key("How tokens are guessed; `ngram` looks them up in the prompt.")
    num_speculative_tokens: Whole = key("Tokens guessed a step.")
    prompt_lookup_min: Whole | None = key("Shortest run of tokens looked up.", None)
    prompt_lookup_max: Whole | None = key("Longest run of tokens looked up.", None)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.prompt_lookup_min or 1) > (self.prompt_lookup_max or math.inf):
            raise ValueError("prompt_lookup_min is above prompt_lookup_max")
        return self


class LatencySettings(Requests):
    """Poisson arrivals at a server; with `dataset`, input_tokens is the longest prompt taken."""

    measure: Literal["latency"]
    repeats: Whole = key("Runs of each rate, whose arrivals differ.", 1)
    request_rates: Rates = key("Mean arrivals a second.")
    seconds: Positive = key("Time in which the requests of one rate arrive.")
    min_requests: Whole = key("Requests of a rate at least, where the seconds give fewer.", 1)
    refine_steps: Annotated[Count, Field(le=100)] = key(
        "Bisections between the highest sustained rate and the next.", 0
    )
    dataset: Literal["heldout"] | None = key("`heldout` sends the held-out chats; random tokens without it.", None)
    speculative: Speculative | None = key("vLLM's --speculative-config.", None)
    async_scheduling: bool | None = key(
        "Whether GPUs compute a step while the next is scheduled; null: unless there is n-gram speculation.", None
    )

    def requests(self, rate: float) -> int:
        """Requests of one run at `rate` requests a second."""
        return max(self.min_requests, round(rate * self.seconds))


class ForwardTimeSettings(PointSettings):
    """One engine step."""

    measure: Literal["forward_time"]
    batch_tokens: Sizes = key("Prompt tokens of one step.")
    repeats: Whole = key("Measurements of each batch.")

    def fit(self, engine: Engine, output_tokens: int) -> None:
        if max(self.batch_tokens) > engine.max_num_batched_tokens:
            raise ValueError(
                f"{max(self.batch_tokens)} tokens do not fit into one step, which has at most "
                f"serving.engine.max_num_batched_tokens = {engine.max_num_batched_tokens}"
            )


class KvCapacitySettings(Requests):
    """Tokens that fit."""

    measure: Literal["kv_capacity"]


class DecodeSettings(Requests):
    """Steps in which a whole batch decodes."""

    measure: Literal["decode"]
    batch_sizes: Sizes = key("Sequences that decode together.")
    repeats: Whole = key("Measurements of each batch size.")

    def fit(self, engine: Engine, output_tokens: int) -> None:
        batch, output_tokens = max(self.batch_sizes), self.output_tokens or output_tokens
        if batch > engine.max_num_seqs:
            raise ValueError(
                f"{batch} sequences do not run at once; at most serving.engine.max_num_seqs = {engine.max_num_seqs} do"
            )
        steps = math.ceil(batch * (self.input_tokens + 1) / engine.max_num_batched_tokens)
        if output_tokens <= steps + 1:
            raise ValueError(
                f"the first of {batch} requests ends before the last has begun, about {steps} steps later; outputs of "
                f"{output_tokens} tokens are too short (output_tokens)"
            )


class AnswerSettings(Requests):
    """Questions about a passage each, answered; input_tokens is the longest prompt that fits."""

    measure: Literal["answer"]
    questions: Whole = key("How many, the first that `reading` draws.")
    batch: Whole = key("Questions that are sent at once.", 1)
    dataset: Literal["reading"] = key("Where the questions come from.", "reading")
    draw: dict[str, int] | None = key("Items and seed of the draw; those of `reading` are filled in.", None)

    @property
    def repeats(self) -> int:
        """Batches: each is a turn."""
        return math.ceil(self.questions / self.batch)


_Kind = (
    ThroughputSettings | LatencySettings | ForwardTimeSettings | KvCapacitySettings | DecodeSettings | AnswerSettings
)
POINTS: dict[str, type[_Kind]] = {
    get_args(kind.model_fields["measure"].annotation)[0]: kind for kind in get_args(_Kind)
}
AnyPoint = Annotated[_Kind, Field(discriminator="measure")]


class Serving(Section):
    """How serving is measured, and its points (Section 4.3, 5.1 and Appendix B.2)."""

    output_tokens: Whole = key("Output length of every request.")
    seed: Seed = key("Seed of prompts and arrivals.")
    in_turns: bool = key(
        "Whether a variant is measured in turns with the baseline, on two engines side by side, where a point is repeated.",
        False,
    )
    engine: Engine = key("Settings of vLLM, the same for every variant.")
    together: Annotated[list[Text], Unique] = key("Sets of points that one job measures with one start of vLLM.")
    points: dict[Name, AnyPoint] = key("What is measured, by name.")
