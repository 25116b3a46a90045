"""The whole configuration: every key of config.yaml and of the overrides of the profiles, each with what it means."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from pipeline.config.catalogue import BenchmarkSize, output_type
from pipeline.config.sources import ChatSource, CheckpointSource, ModelSource, QuestionSource
from swiftkv.architectures import ARCHITECTURES
from swiftkv.section import Count, Fraction, Name, Names, Section, Seed, Text, Unique, Whole, key

NamedSets = dict[Name, Names]
NamesOrSet = Names | Text
# A prefill reduction in percent, also without quotes.
Reduction = Annotated[str, Field(pattern=r"^[1-9]?\d(\.\d+)?$", strict=False, coerce_numbers_to_str=True)]


def _resource(name: str) -> str:
    if name in ("gpu", "nodes", "mem_mb", "runtime"):
        raise ValueError(f"{name} follows from the models and what jobs need; leave it out")
    return name


def _family(name: str) -> str:
    if name not in ARCHITECTURES:
        raise ValueError(f"SwiftKV does not know {name!r} models, only {', '.join(sorted(ARCHITECTURES))}")
    return name


class Pathvars(Section):
    """Where a scale writes; `<results>` in the rules stands for the first of these."""

    results: Text = key("Folder of everything produced.")
    logs: Text = key("Folder of the logs.")
    benchmarks: Text = key("Folder of Snakemake's own time and memory records.")


class GpuJobs(Section):
    """What the jobs of a cluster ask for with their GPUs; nothing on one machine."""

    resources: dict[Annotated[str, Field(pattern="^[a-z_]+$"), AfterValidator(_resource)], Text | Count] = key(
        "Resources of Snakemake's SLURM executor, as they are: slurm_partition, gpu_model, constraint, "
        "cpus_per_gpu ...",
        {},
    )
    gres: Annotated[str, Field(pattern=r"^gpu(:[A-Za-z0-9_.]+)?$")] | None = key(
        "Where SLURM wants `--gres` in place of `--gpus`: gpu, or gpu:h100 in place of gpu_model.", None
    )
    local_cache: Annotated[str, Field(pattern=r"^[$/A-Za-z0-9._{}-]+$")] | None = key(
        "Folder of every node below which a job keeps the caches of compilers and libraries, its own; "
        "`$VARIABLES` are the node's.",
        None,
    )
    mem_mb_per_gpu: Whole | None = key("Memory with each GPU; a second attempt asks for twice as much.", None)
    mem_mb_per_node: Whole | None = key("The most a job asks for on one node.", None)
    longest_runtime: Whole | None = key(
        "The longest time limit that the partition allows, in minutes. Jobs ask for twice what `make plan` estimates, at least "
        "two hours, and for more with each attempt; absent: what the profile says.",
        None,
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.mem_mb_per_gpu is None) != (self.mem_mb_per_node is None):
            raise ValueError("mem_mb_per_gpu and mem_mb_per_node are stated together")
        if self.gres and (model := self.resources.get("gpu_model")):
            raise ValueError(f"gres replaces gpu_model: write gres: gpu:{model} and leave gpu_model out of resources")
        return self


class Nodes(Section):
    """Cluster nodes of a job."""

    distill: Whole = key("For one training; everything else runs on one.")


class Gpus(Section):
    """GPUs of a job over all its nodes; 0 runs on the processor."""

    distill: Count = key("For one training.")
    score: Count = key("For one scoring job.")
    serve: Count | None = key("For one served model: it is split over them (tensor parallel).", None)


class Unavailable(Section):
    """What cannot be measured of a model, and why: artifacts show the reason."""

    quality: Text | None = key("Why its scores, fidelity and similarity cannot.", None)
    serving: Text | None = key("Why it cannot be served.", None)


class Model(Section):
    """One model."""

    title: Text = key("The published name, printed in tables and figures.")
    source: ModelSource = key("Where the weights come from; exactly one of hub, package and local.")
    chat_template: CheckpointSource | None = key("Hub or local: the model whose chat template it takes.", None)
    architecture: Text | None = key(
        "Its config.json, or a file with it under `config`: costs then need no download.", None
    )
    num_hidden_layers: Whole = key("L, the number of decoder layers; checked against the checkpoint.")
    num_key_value_layers: dict[Reduction, Whole] = key("l by nominal prefill reduction in percent.", min_length=1)
    model_type: Annotated[str, AfterValidator(_family)] | None = key(
        "transformers' name of its architecture: what it cannot have then stops the plan.", None
    )
    checkpoints: dict[Name, CheckpointSource] = key("Of others, by variant; such a variant has no recipe.", {})
    published: Text | None = key("Key of this model in the published numbers under resources/paper.", None)
    zero_stage: Literal[2, 3] = key("DeepSpeed ZeRO stage of its training.")
    recipe: dict[Name, Any] = key("Keys of a recipe that this model's trainings have of their own.", {})
    nodes: Nodes
    gpus: Gpus
    serving_weights: Literal["trained", "dummy"] = key(
        "Served with `trained` weights, or `dummy`: none are downloaded or trained, speed and memory are real.",
        "trained",
    )
    quantization: Text | None = key("vLLM's --quantization while serving; absent: none, or the checkpoint's own.", None)
    unavailable: Unavailable | None = key("What cannot be measured of it, and why.", None)

    @property
    def family(self) -> str | None:
        """transformers' model_type where the configuration says it; a few families lack something."""
        shape = getattr(self.source, "random", None)
        return self.model_type or (shape and shape.model_type)

    def unmeasured(self, what: Literal["quality", "serving"]) -> str | None:
        """Return why its quality or serving cannot be measured; None if it can."""
        return self.unavailable and getattr(self.unavailable, what)

    @property
    def layers_below(self) -> list[int]:
        """Every l it can be rewired at, largest first."""
        return sorted(set(self.num_key_value_layers.values()), reverse=True)

    @model_validator(mode="after")
    def _check(self) -> Self:
        for reduction, ordinary in self.num_key_value_layers.items():
            layers, fitting = self.num_hidden_layers, self.num_hidden_layers * (1 - float(reduction) / 100)
            if ordinary >= layers:
                raise ValueError(
                    f"num_key_value_layers.{reduction}: {ordinary} ordinary layers leave none of {layers} to rewire"
                )
            if abs(ordinary - fitting) > 1:
                raise ValueError(
                    f"num_key_value_layers.{reduction}: {ordinary} ordinary layers of {layers} skip "
                    f"{100 * (1 - ordinary / layers):.3g} % of the prefill; for {reduction} % write {max(1, round(fitting))}"
                )
        gpus, nodes = self.gpus.distill, self.nodes.distill
        if max(1, gpus) % nodes:
            raise ValueError(f"{gpus} GPUs for distill cannot be spread evenly over {nodes} nodes")
        shape = getattr(self.source, "random", None)
        if shape and shape.num_hidden_layers not in (None, self.num_hidden_layers):
            raise ValueError(
                f"source.random has {shape.num_hidden_layers} layers, but num_hidden_layers is {self.num_hidden_layers}"
            )
        return self


class Variant(Section):
    """What is done to a model."""

    prefill_reduction: Reduction | None = key("A key of num_key_value_layers; null leaves the model as it is.")
    acrosskv: Whole | None = key("AcrossKV: consecutive layers that share one KV cache.", None)
    kv_heads: Whole | None = key("KV heads of the rewired layers (Appendix C.1); null keeps the model's.", None)
    early_exit: bool = key("A second language-model head at layer l, where decoding may end (Appendix D.1).", False)
    own_key_values: bool = key(
        "Answers keep the keys and values that all layers make of them; not in the paper.", False
    )
    recipe: Text | None = key(
        "How it is trained, a key under recipes; absent with a prefill_reduction: not trained here, its "
        "checkpoint is the model's.",
        None,
    )
    merge_all_layers: bool = key("Served only: one layer's KV cache is kept (Section 5.1).", False)

    @property
    def rewired(self) -> bool:
        """Return True if layers skip prefill."""
        return self.prefill_reduction is not None

    @property
    def changed(self) -> bool:
        """Return True if it is measured on a checkpoint of its own."""
        return self.rewired or self.recipe is not None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.prefill_reduction is None:
            if given := [key for key in ("acrosskv", "kv_heads", "early_exit", "own_key_values") if getattr(self, key)]:
                raise ValueError(f"{given[0]} needs a prefill_reduction")
            if self.merge_all_layers and self.recipe:
                raise ValueError("merge_all_layers serves the model as it is, so it has no recipe")
        elif self.merge_all_layers:
            raise ValueError("merge_all_layers serves the model as it is, so it has no prefill_reduction")
        elif self.acrosskv is None:
            raise ValueError("a variant with a prefill_reduction needs acrosskv")
        return self


class DataMix(Section):
    """A mix of chats."""

    sources: list[ChatSource] = key("Where the chats come from.", min_length=1)
    seed: Seed = key("Seed of the shuffle.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [source.name or getattr(source, "hub", None) for source in self.sources]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two sources are called {twice!r}; give each a name of its own")
        return self


class Heldout(Section):
    """Chats that everything is measured on and no mix is trained on."""

    data: Text = key("The mix they are drawn from, a key under data.")
    chats: Whole = key("Number of chats.")
    seed: Seed = key("Seed of the shuffle whose first chats they are.")


class Fidelity(Section):
    """Held-out chats on which KL to the teacher, top-1 agreement and perplexity are measured."""

    documents: Whole = key("Number of chats used.")
    max_length: Whole = key("Longer chats are cut at this many tokens.")
    seed: Seed = key("Seed of the choice of chats.")


class Similarity(Fidelity):
    """Text of the similarity analysis, Section 3.2: training examples."""

    data: Text = key("A key under data.")


FAMILIES = ("copied", "fitted")  # of untrained variants, a member for each of many l


class Prompts(Section):
    """Prompts in which reading is measured."""

    items: Whole = key("Questions about a passage alone.")
    among: Whole = key("How many of them are also asked about their passage among three others.")
    seed: Seed = key("Seed of the choice of questions and places.")


class Reading(Prompts):
    """How much a prompt's text lowers the bits of the answer; not in the paper."""

    data: Text = key("SQuAD, a key under data: Title, Background and Question on lines of their own.")
    every: Whole = key("A family has every so many l from a third of the layers on, and those of its model.")
    fit: Text = key("The recipe whose text, ridge and number format the fitted family is fitted with.")


class EarlyExit(Fidelity):
    """How early exit is measured (Appendices D.1 and E)."""

    threshold: Fraction = key("A token leaves at layer l if the early exit's largest probability is above this.")
    bins: Annotated[Whole, Field(le=1000)] = key(
        "Equal bins of that probability, for which agreement with the full model is measured."
    )
    prompts: Whole = key("Held-out chats whose first message is answered.")
    max_new_tokens: Whole = key("Longer answers are cut at this many tokens.")
    questions: Names = key("Further questions that are answered; artifacts show the answers.")


Backend = Literal["auto", "transformers", "vllm"]


class Scoring(Section):
    """Settings of all benchmarks."""

    seed: Seed = key("Seed of question subsets and of few-shot examples drawn at random.")
    backend: Backend = key(
        "What computes scores: `transformers`, or for generated answers `vllm`, with fast prefill; `auto` takes `vllm` for "
        "models that are scored on more than one GPU, of which transformers uses one at a time."
    )
    together: Annotated[list[Text], Unique] = key("Sets of tasks that one job scores with one start of the model.")


class Scored(Section):
    """Settings that change a score of a benchmark, besides the model."""

    task: Text = key("Name of the lm-eval task.")
    shots: Annotated[Count, Field(le=1000)] = key("Few-shot examples.")
    chat_template: bool = key("Whether prompts go through the model's chat template.")
    fewshot_as_multiturn: bool = key("Whether examples are turns of the chat.")
    metric: Text = key(
        "Metric of the lm-eval task; `bits_per_byte`, ours, of loglikelihoods and of the right one of choices."
    )
    filter: Text = key("Output filter of the lm-eval task.")
    limit: Whole | None = key("Score a seeded random subset of this size; null scores all.")
    max_gen_toks: Whole | None = key("Generation limit in tokens; null keeps the task's own.", None)
    batch_size: Whole = key("Answers generated at once; fixed so that scores repeat.")
    source: QuestionSource | None = key("Where the questions are; absent: the hub data set lm-eval names.", None)
    metadata: dict[str, Any] | None = key(
        "lm-eval's --metadata, for tasks that make their questions themselves: of RULER, max_seq_lengths, one a score, and "
        "tokenizer, without which the model's own measures them.",
        None,
        exclude_if=lambda metadata: metadata is None,  # settings of jobs stay as they were
    )


class Task(Scored):
    """A benchmark scored with lm-eval (Table B.1)."""

    title: Text = key("Column head in tables.")
    published: Text | None = key("Column of the published numbers, if it is not the task's own name.", None)
    backend: Backend | None = key("Replaces scoring.backend.", None)
    asks: BenchmarkSize | None = key(
        "How much it asks, for plans; absent: as workflow/pipeline/config/benchmarks.yaml says.", None
    )
    chance: Fraction | None = key("Share that guessing gets right; tables mark what is not above it.", None)

    @model_validator(mode="after")
    def _check(self) -> Self:
        lengths = (self.metadata or {}).get("max_seq_lengths")
        if isinstance(lengths, list) and len(lengths) != 1:
            raise ValueError("a score is of one length: write an entry for each of metadata.max_seq_lengths")
        return self

    @property
    def generated(self) -> bool:
        """Return True if answers are generated, and not scored by log-likelihoods; lm-eval's files tell it."""
        return output_type(self.task) == "generate_until"


class Sets(Section):
    """Lists that artifacts.yaml and `together` name."""

    variants: NamedSets = key("Lists of variants; `/fp8` is a variant with an FP8 KV cache.")
    points: NamedSets = key("Lists of serving points.")
    tasks: NamedSets = key("Lists of tasks.")
    artifacts: NamedSets = key("Lists of artifacts; `snakemake NAME` makes those of one.", {})


class Scope(Section):
    """Keys of an artifact's entry that name models, for all kinds."""

    models: Names | None = key("By role, or a model's own name.", None)


class Part(Scope):
    """A block of rows."""

    title: Text = key("How its rows are headed.")
    models: Names = key("By role, or a model's own name.")
    variants: NamesOrSet = key("Variants, or a set of them; `/fp8` is one with an FP8 KV cache.")


class Artifact(Scope, extra="allow"):
    """A table or figure; its kind says which further keys it takes."""

    kind: Text = key("How it is made: workflow/pipeline/artifacts/entry.py lists all kinds.")
    parts: list[Part] | None = key("Blocks of rows.", None, min_length=1)
