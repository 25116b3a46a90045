"""The checkable sentences of the paper and of the blog post, each with the numbers that judge it.

A claim states bounds to its digits; None is open, as "up to", "over" and "at most" are on the better side. Its weaker form
is what its measured interval has to lie within for the claim to agree, and outside of to be contradicted: a speed-up has to
be of 5 %, a speed a tenth below the stated one, a loss twice the stated one. Other models, lengths and hardware are judged by
that alone; without it, or with `own`, only the stated case can be judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

AGREES, CONTRADICTS, UNDECIDED, UNMEASURED = "agrees", "contradicts", "undecided", "not measured"
VERDICTS = (AGREES, CONTRADICTS, UNDECIDED, UNMEASURED)

# By role, the model the sentences are about (`published` of config.yaml), and the H100 GPUs that serve it.
MODELS = {
    "small": "llama-3.1-8b", "large": "llama-3.1-70b", "large_fp8": "llama-3.1-70b-fp8", "huge": "llama-3.1-405b",
    "mini": "llama-3.2-3b", "mistral": "mistral-7b", "mistral_small": "mistral-small-2409", "qwen": "qwen2.5-7b",
    "moe": "deepseek-v2-lite", "base": "llama-3.1-8b-base", "llama2_7b": "llama-2-7b", "llama2_13b": "llama-2-13b",
}  # fmt: skip
GPUS = {"small": 1, "large": 4, "large_fp8": 2, "huge": 8}
BENCHMARKS = 7  # that averages are over
RESOLUTION = 1.5  # points that the paper's benchmarks can tell apart: what a small loss may be in its weaker form
OUTPUT_TOKENS, TOTAL_TOKENS = 256, 15e6  # of the sources' requests (Figure 3, App. B.2)

Bounds = tuple[float | None, float | None]
LONGEST, LOWEST, HIGHEST = "longest", "lowest", "highest"


class Cell(NamedTuple):
    """A number of an artifact's CSV.

    Attributes:
        variant: a name, or several that are looked through.
        length: of the prompts; a number is the nearest one. A tuple (longest, 32000) has what the sources call it.
        memory: limit in GB: a number, or (lowest, 16).
        at: place on the artifact's axis: a number, lowest, or "loaded": rates at which the baseline's TPOT is above its lowest.
        gpus: H100 GPUs that it was measured on; None where it is no speed.
    """

    artifact: str
    metric: str
    role: str
    variant: str | tuple[str, ...] = "swiftkv-50"
    kv_cache: str = "auto"
    length: Any = None
    memory: Any = None
    at: Any = None
    gpus: int | None = None


class Quantity(NamedTuple):
    """A quantity computed from cells.

    Attributes:
        how: cell; minus (of two: first less second; of four: by how much that is more than third less fourth); ratio; most or
            least of the rows of one cell; rises (the last along the axis less the first); status.
    """

    how: str
    cells: tuple[Cell, ...]


class Arithmetic(NamedTuple):
    """A number that follows from the dimensions of the stated model, in resources/architectures.

    Attributes:
        what: a function of `judge`.
        arguments: the model and what else it takes.
    """

    what: str
    arguments: tuple[Any, ...]


class Claim(NamedTuple):
    """A sentence in short, its place, and the quantity that judges it; `note` says where the sources contradict each other."""

    id: str
    text: str
    place: str
    quantity: Quantity | Arithmetic
    stated: Bounds | str
    weaker: Bounds | None = None
    unit: str = ""
    note: str = ""
    own: bool = False
    kl: bool = False  # whether KL to the teacher, which is ours, is remarked


SWIFTKV = ("swiftkv-50", "swiftkv-50-across4")
POSITIVE, GAIN = (0.0, None), (1.05, None)


def cell(*cells: Cell) -> Quantity:
    """One number."""
    return Quantity("cell", cells)


def minus(*cells: Cell) -> Quantity:
    """A difference of two, or of two differences."""
    return Quantity("minus", cells)


def ratio(*cells: Cell) -> Quantity:
    """The first over the second."""
    return Quantity("ratio", cells)


def most(*cells: Cell) -> Quantity:
    """The largest of many rows."""
    return Quantity("most", cells)


def least(*cells: Cell) -> Quantity:
    """The smallest of many rows."""
    return Quantity("least", cells)


def average(table: str, role: str, *variants: str, metric: str = "average") -> tuple[Cell, ...]:
    """Averages, or scores, of variants of a table; `variant/fp8` has an FP8 KV cache."""
    return tuple(Cell(table, metric, role, *item.split("/")) for item in variants)


def lost(id: str, text: str, place: str, quantity: Quantity, points: float, **more: Any) -> Claim:
    """A loss of at most so many points, to the digits it is stated with."""
    return Claim(id, text, place, quantity, (None, points), (None, max(2 * points, RESOLUTION)), "points", **more)


def speedup(artifact: str, role: str, variant: Any = "swiftkv-50", metric: str = "speedup", **at: Any) -> Cell:
    """A speed, on as many H100 GPUs as the sources used."""
    return Cell(artifact, metric, role, variant, gpus=GPUS[role], **at)


def faster(id: str, text: str, place: str, quantity: Quantity, stated: Bounds, **more: Any) -> Claim:
    """A speed-up; its weaker form is any of 5 %."""
    return Claim(id, text, place, quantity, stated, GAIN, "×", **more)


def reaches(id: str, text: str, place: str, quantity: Quantity, stated: float, unit: str, note: str = "") -> Claim:
    """An absolute speed, of the stated models on the stated hardware alone."""
    return Claim(id, text, place, quantity, (stated, None), (0.9 * stated, None), unit, note, own=True)


def simscore(role: str, depth: float, artifact: str = "figure2_left") -> Cell:
    """SimScore at a depth in percent."""
    return Cell(artifact, "simscore", role, "baseline", at=("depth", depth))


def rate(artifact: str, role: str) -> Cell:
    """The gain in the highest sustained rate."""
    return speedup(artifact, role, "swiftkv-50" if role == "huge" else SWIFTKV, "sustained_rate_speedup")


def reduction(artifact: str, role: str, name: str, **at: Any) -> Cell:
    """The reduction of a latency, in percent."""
    return speedup(artifact, role, "swiftkv-50" if role == "huge" else SWIFTKV, f"{name}_reduction_percent", **at)


def limited(variant: str, memory: Any, kv_cache: str = "auto", metric: str = "tokens_per_second") -> Cell:
    """A number of Table 5."""
    return Cell("table5", metric, "small", variant, kv_cache, memory=memory, gpus=1)


_BLOCKS = "the paper states the 62.5 %; 2.67 is 1 / (1 - 0.625), and vLLM's whole blocks may cost it 0.1 %"
_MERGED = "one cache in place of L; of another L a tenfold one is asked"
_LARGER = "no number and no model is stated for larger models; 0.5 is that of the smaller ones"
_COUNTED = "Eq. 1 counts layers from 1, the CSV from 0; a layer is worth 0.025, and so much is allowed"
_ABOUT = "no number is stated; about 1 point, as the blog counts a small loss"
_PARAMETERS = "560 (56.6 %) is 16K tokens/s with 70.0e9 parameters; with its 70.55e9, as here, 564 (57.0 %)"
_ALIKE = '"a similar story", no number'
_BOTH = "stated for 70B and 405B together, not which of them reaches it"
_LOADED = "no number for each rate; rates at which the baseline's own TPOT is a tenth above its lowest, and it keeps up"
_NO_LOAD = "no number is stated; 5 % is taken as no reduction"
_FASTEST = "against the fastest SwiftKV there"
_42, _43, _51, _BLOG = "paper, Sec. 4.2", "paper, Sec. 4.3", "paper, Sec. 5.1", "blog, Batch Inference"
_LATENCY, _KNOWLEDGE = "blog, Interactive inference", "blog, Knowledge recovery"
_COMPUTE = "blog, The real bottleneck: Compute operations"
_MEMORY_62 = "8B: 62.5 % less KV cache with 2-way AcrossKV and FP8"
_LONG = (LONGEST, 32000)

# fmt: off
SECTIONS: dict[str, list[Claim]] = {
    "Prefill compute and KV memory": [
        Claim("prefill-8b", "8B: half of the prefill compute", "paper, Abstract; Sec. 1", Arithmetic("prefill_reduction", ("llama-3.1-8b", 16)), (49.5, 50.5), unit="%", note="as Sec. 4.1 counts it, (L - l) / L"),
        Claim("prefill-70b", "70B: half of the prefill compute", "paper, Abstract; Sec. 1", Arithmetic("prefill_reduction", ("llama-3.1-70b", 40)), (49.5, 50.5), unit="%", note="as Sec. 4.1 counts it, (L - l) / L; in FLOPs Table 1 saves 49.0 %"),
        Claim("flops-25", "70B: 25 % SingleInputKV needs 75.5 % of the FLOPs", "paper, Table 1", Arithmetic("relative_flops", ("llama-3.1-70b", 60, 1, "paper")), (75.45, 75.55), unit="%"),
        Claim("flops-50", "70B: 50 % SingleInputKV needs 51.0 %", "paper, Table 1", Arithmetic("relative_flops", ("llama-3.1-70b", 40, 1, "paper")), (50.95, 51.05), unit="%"),
        Claim("flops-50-across4", "70B: with 4-way AcrossKV 50.7 %", "paper, Table 1", Arithmetic("relative_flops", ("llama-3.1-70b", 40, 4, "paper")), (50.65, 50.75), unit="%"),
        Claim("blog-flops-25", "70B: 25 % SingleInputKV needs 75.5 % of the FLOPs", "blog, Table 2", Arithmetic("relative_flops", ("llama-3.1-70b", 60, 1, "blog")), (75.45, 75.55), unit="%"),
        Claim("blog-flops-50", "70B: 50 % SingleInputKV needs 51.1 %", "blog, Table 2", Arithmetic("relative_flops", ("llama-3.1-70b", 40, 1, "blog")), (51.05, 51.15), unit="%", note="51.0 % in the paper's Table 1, which rounds otherwise"),
        Claim("similar-cost", "Llama-2-13B at 50 % incurs similar computation costs as Llama-2-7B", _KNOWLEDGE, Arithmetic("flops_ratio", ("llama-2-13b", 20, "llama-2-7b", 2000)), (0.8, 1.25), unit="×", note="no number is stated; FLOPs per prefill token of 2,000, and a quarter more or less is taken as similar"),
        Claim("memory-37", "8B: 37.5 % less KV cache with 4-way AcrossKV", "paper, Sec. 4.1", Arithmetic("cache_reduction", ("llama-3.1-8b", 16, 4, False)), (37.45, 37.55), unit="%"),
        Claim("memory-62", _MEMORY_62, "paper, Abstract; Sec. 1; Sec. 4.2", Arithmetic("cache_reduction", ("llama-3.1-8b", 16, 2, True)), (62.45, 62.55), unit="%"),
        Claim("capacity-4way", "8B: so 1.6 times the tokens fit with 4-way AcrossKV", "paper, Sec. 4.1", cell(Cell("kv_capacity", "capacity_ratio", "small", "swiftkv-50-across4")), (1.59, None), (1.3, None), "×", "1 / (1 - 0.375); vLLM's whole blocks may cost it 0.1 %"),
        Claim("capacity-8b", "8B: so 2.67 times the tokens fit", "paper, Abstract", cell(Cell("kv_capacity", "capacity_ratio", "small", "swiftkv-50-across2", "fp8")), (2.66, None), (2, None), "×", _BLOCKS),
        Claim("capacity-70b", "70B: so 2.67 times the tokens fit", "paper, Abstract", cell(Cell("kv_capacity", "capacity_ratio", "large", "swiftkv-50-across2", "fp8")), (2.66, None), (2, None), "×", _BLOCKS),
        Claim("merge-32", "8B: Merge-all-Layers compresses the KV cache 32 times", _51, cell(Cell("kv_capacity", "capacity_ratio", "small", "merge-all-layers")), (31.5, 32.5), (10, None), "×", _MERGED),
        Claim("merge-80-times", "70B: Merge-all-Layers compresses the KV cache 80 times", _51, cell(Cell("kv_capacity", "capacity_ratio", "large", "merge-all-layers")), (79.5, 80.5), (10, None), "×", _MERGED),
    ],
    "Similarity of layer inputs": [
        Claim("simscore-rises-8b", "Llama-3.1-8B: SimScore gets higher with depth", "paper, Sec. 3.2", Quantity("rises", (Cell("figure2_left", "simscore", "small", "baseline"),)), POSITIVE, POSITIVE),
        Claim("simscore-rises-mistral", "Mistral-7B: SimScore gets higher with depth", "paper, Sec. 3.2", Quantity("rises", (Cell("figure2_left", "simscore", "mistral", "baseline"),)), POSITIVE, POSITIVE),
        Claim("simscore-rises-qwen", "Qwen2.5-7B: SimScore gets higher with depth", "paper, Sec. 3.2", Quantity("rises", (Cell("figure2_left", "simscore", "qwen", "baseline"),)), POSITIVE, POSITIVE),
        Claim("simscore-half-8b", "Llama-3.1-8B: above 0.5 around half of the depth", "paper, Sec. 3.2", cell(simscore("small", 50)), (0.5, None), (0.5, None)),
        Claim("simscore-half-mistral", "Mistral-7B: above 0.5 around half of the depth", "paper, Sec. 3.2", cell(simscore("mistral", 50)), (0.5, None), (0.5, None)),
        Claim("simscore-half-qwen", "Qwen2.5-7B: above 0.5 around half of the depth", "paper, Sec. 3.2", cell(simscore("qwen", 50)), (0.5, None), (0.5, None)),
        Claim("simscore-half-70b", "larger models are alike: 70B", "paper, Figure 2; Figure A.1", cell(simscore("large", 50, "figureA1")), (0.5, None), (0.5, None), note=_LARGER),
        Claim("simscore-half-mistral-small", "larger models are alike: Mistral-Small", "paper, Figure 2; Figure A.1", cell(simscore("mistral_small", 50, "figureA1")), (0.5, None), (0.5, None), note=_LARGER),
        Claim("simscore-16", "8B: 0.61 at layer 16", _42, cell(simscore("small", 50)), (0.585, 0.635), note=_COUNTED),
        Claim("simscore-12", "8B: 0.51 at layer 12", _42, cell(simscore("small", 37.5)), (0.485, 0.535), note=_COUNTED),
        Claim("simscore-drop", "8B: similarity drops from layer 16 to layer 12", _42, minus(simscore("small", 50), simscore("small", 37.5)), (0.09, 0.11), POSITIVE),
    ],
    "Training": [
        Claim("train-8b-hours", "8B: distilled in less than 3 hours on 8 H100", "paper, Sec. 1; Sec. 3.4", cell(Cell("training_cost", "training_hours", "small", gpus=8)), (None, 3), unit="h", note="Sec. 1 says less than 3 hours, Sec. 3.4 in 3 hours, both for 680M tokens; the blog says 4 hours for 320M"),
        Claim("train-8b-hours-blog", "8B: distilled in 4 hours on 8 H100", "blog, footnote 1", cell(Cell("training_cost", "training_hours", "small", gpus=8)), (3.5, 4.5), unit="h", note="for 320M tokens; the paper says less than 3 hours for 680M"),
        Claim("train-8b-tokens", "8B: trained on 680M tokens", "paper, Sec. 1; Sec. 3.4", cell(Cell("training_cost", "training_tokens", "small")), (646e6, 714e6), unit="tokens", note="within 5 %, as held-out and long samples are left out here; App. B.1 has 160M tokens of data and 2 epochs, App. E 160M tokens of training, the blog 320M"),
        Claim("train-8b-tokens-blog", "8B: trained on 320M tokens", "blog, footnote 1", cell(Cell("training_cost", "training_tokens", "small")), (304e6, 336e6), unit="tokens", note="within 5 %; 2 epochs of the 160M tokens of App. B.1; Sec. 1 and 3.4 of the paper say 680M"),
        Claim("train-70b-hours", "70B: distilled in 5 hours on 32 H100", "paper, Sec. 3.4", cell(Cell("training_cost", "training_hours", "large", gpus=32)), (None, 5.5), unit="h"),
    ],
    "Quality, Sec. 4.2": [
        lost("loss-25", "8B: 25 % SingleInputKV costs only about 0.12 points", _42, minus(*average("table2", "small", "baseline", "swiftkv-25")), 0.125),
        lost("loss-50", "8B: 50 % costs about 1 point", _42, minus(*average("table2", "small", "baseline", "swiftkv-50")), 1.5),
        Claim("score-62.5", "8B: 62.5 % drops to 66.09", _42, minus(*average("table2", "small", "baseline", "swiftkv-62.5")), (7.615, 7.625), POSITIVE, "points", "by 7.62 from the 73.71 of the baseline"),
        Claim("loss-62.5", "8B: 62.5 % is significantly below the baseline", _42, minus(*average("table2", "small", "baseline", "swiftkv-62.5")), (3, None), POSITIVE, "points", "no number is stated; 7.62 points in Table 2, and 3 here is the most that counts as little"),
        lost("across2", "8B: 2-way AcrossKV costs about 0.9 points more", _42, minus(*average("table2", "small", "swiftkv-50", "swiftkv-50-across2")), 0.95),
        lost("across2-sec1", "25 % less KV cache with less than a 1 % quality gap", "paper, Sec. 1", minus(*average("table2", "small", "swiftkv-50", "swiftkv-50-across2")), 1, note="Sec. 1 names no model; against SingleInputKV alone, as in Sec. 4.2"),
        lost("across8", "8B: another 0.32 from 2-way to 8-way", _42, minus(*average("table2", "small", "swiftkv-50-across2", "swiftkv-50-across8")), 0.325, note="Table 2 of the same paper has 1.32; 0.33 is 2-way to 4-way"),
        lost("across16", "8B: and 0.62 all the way to 16-way", _42, minus(*average("table2", "small", "swiftkv-50-across2", "swiftkv-50-across16")), 0.625, note="Table 2 of the same paper has 1.60 from 2-way and 0.28 from 8-way"),
        lost("across16-single", "8B: 16-way is only about 2.5 points below SingleInputKV", _42, minus(*average("table2", "small", "swiftkv-50", "swiftkv-50-across16")), 2.55),
        lost("loss-25-70b", "70B: 25 % costs 0.48 points", "paper, Table 3", minus(*average("table3", "large", "baseline", "swiftkv-25")), 0.485),
        lost("loss-70b", "70B: 50 % costs 1.3 points", _42, minus(*average("table3", "large", "baseline", "swiftkv-50")), 1.35),
        Claim("loss-70b-8b", "70B: that is slightly more than 8B loses", _42, minus(*average("table3", "large", "baseline", "swiftkv-50"), *average("table2", "small", "baseline", "swiftkv-50")), (0, 1.5), POSITIVE, "points", "no number is stated; 1.33 against 1.01 in Tables 3 and 2"),
        lost("across2-70b", "70B: 2-way AcrossKV costs less than 0.35 points", _42, minus(*average("table3", "large", "swiftkv-50", "swiftkv-50-across2")), 0.355, note="the text says less than 0.35; Table 3 has 0.35"),
        lost("across4-70b", "70B: 4-way AcrossKV costs less than 0.35 points", _42, minus(*average("table3", "large", "swiftkv-50", "swiftkv-50-across4")), 0.355),
        Claim("across4-70b-8b", "70B is more resilient to AcrossKV than 8B", _42, minus(*average("table2", "small", "swiftkv-50", "swiftkv-50-across4"), *average("table3", "large", "swiftkv-50", "swiftkv-50-across4")), POSITIVE, POSITIVE, "points", "no number is stated; with 4-way 8B loses 1.21 points in Table 2, 70B 0.02 in Table 3"),
        lost("3b-25", "3B: 25 % costs nothing", "paper, Table 4", minus(*average("tableB2", "mini", "baseline", "swiftkv-25")), 0.005, note="0.08 points more than the baseline in Table 4"),
        lost("3b-40", "3B performs well at 40 %", _42, minus(*average("tableB2", "mini", "baseline", "swiftkv-40")), 1.5, note=_ABOUT),
        Claim("3b-50", "3B: quality falls off more steeply at 50 %", _42, minus(*average("tableB2", "mini", "swiftkv-40", "swiftkv-50")), (0.92, None), POSITIVE, "points", "no number is stated; more than the 0.92 points that 40 % costs in Table 4"),
        lost("moe-45", "DeepSeek-V2-Lite: generalizes well at 45 %", _42, minus(*average("tableB5", "moe", "baseline", "swiftkv-45")), 1.5, note="no number is stated; 0.61 points in Table 4"),
        lost("moe-across2", "DeepSeek-V2-Lite performs well at 2-way AcrossKV", _42, minus(*average("tableB5", "moe", "swiftkv-45", "swiftkv-45-across2")), 1.5, note=_ABOUT),
        Claim("moe-across4", "DeepSeek-V2-Lite: quality falls off more steeply at 4-way", _42, minus(*average("tableB5", "moe", "swiftkv-45-across2", "swiftkv-45-across4")), (0.44, None), POSITIVE, "points", "no number is stated; more than the 0.44 points that 2-way costs in Table 4"),
        lost("mistral-small-25", "Mistral-Small: 25 % costs 0.43 points", "paper, Table 4", minus(*average("tableB4", "mistral_small", "baseline", "swiftkv-25")), 0.435),
        lost("mistral-small-across4", "Mistral-Small: generalizes well with 4-way AcrossKV", _42, minus(*average("tableB4", "mistral_small", "swiftkv-50", "swiftkv-50-across4")), 1.5, note="no number is stated; 1 point, as the blog counts a small loss"),
        lost("loss-405b", "405B: about 1 point at half the prefill compute", _KNOWLEDGE, minus(*average("blog_table3", "huge", "baseline", "swiftkv-50")), 1.5),
        lost("loss-mistral-small", "Mistral-Small: about 1 point at half the prefill compute", _KNOWLEDGE, minus(*average("blog_table4", "mistral_small", "baseline", "swiftkv-50")), 1.5, note="the blog does not name the models of its Tables 3 to 5; the numbers are those of Tables B.3, B.4 and 2"),
        lost("loss-8b-blog", "8B: about 1 point at half the prefill compute", _KNOWLEDGE, minus(*average("blog_table5", "small", "baseline", "swiftkv-50")), 1.5),
        Claim("llama2", "Llama-2-13B at 50 % is significantly better than Llama-2-7B", _KNOWLEDGE, minus(*average("blog_table6", "llama2_13b", "swiftkv-50"), *average("blog_table6", "llama2_7b", "baseline")), (3, None), POSITIVE, "points", "no number is stated; 52.88 against 47.62 in the blog's Table 6"),
    ],
    "Ablations of quality, Sec. 5 and Appendix C": [
        Claim("distillation-average", "8B: distillation is 2.64 points better than the LM loss", "paper, Sec. 5.2", minus(*average("table6", "small", "swiftkv-50", "swiftkv-50-lm-loss")), (2.635, 2.645), POSITIVE, "points"),
        Claim("distillation-mmlu-cot", "8B: by 4.13 on MMLU-CoT", "paper, Sec. 5.2", minus(*average("table6", "small", "swiftkv-50", "swiftkv-50-lm-loss", metric="mmlu-cot")), (4.125, 4.135), POSITIVE, "points"),
        Claim("distillation-gsm8k", "8B: by 6.74 on GSM8K", "paper, Sec. 5.2", minus(*average("table6", "small", "swiftkv-50", "swiftkv-50-lm-loss", metric="gsm8k")), (6.735, 6.745), POSITIVE, "points"),
        Claim("full-model", "8B: training the full model is about 4.5 points lower", "paper, Sec. 5.2", minus(*average("table6", "small", "swiftkv-50", "swiftkv-50-full-model")), (4.45, 4.55), POSITIVE, "points", kl=True),
        lost("fp8-50", "8B: an FP8 KV cache costs at most 0.4 points, SingleInputKV", "paper, Sec. 5.3", minus(*average("table7", "small", "swiftkv-50", "swiftkv-50/fp8")), 0.4),
        lost("fp8-across2", "8B: at most 0.4 points, 2-way AcrossKV", "paper, Sec. 5.3", minus(*average("table7", "small", "swiftkv-50-across2", "swiftkv-50-across2/fp8")), 0.4),
        lost("fp8-across4", "8B: at most 0.4 points, 4-way AcrossKV", "paper, Sec. 5.3", minus(*average("table7", "small", "swiftkv-50-across4", "swiftkv-50-across4/fp8")), 0.4),
        lost("memory-62-loss", "8B: 62.5 % less KV cache with only a 1-point gap to SingleInputKV", _42, minus(*average("table7", "small", "swiftkv-50", "swiftkv-50-across2/fp8")), 1.5),
        lost("blog-memory-62", "8B: 62.5 % less KV cache and about a point lost", "blog, Optimizing memory", minus(*average("table7", "small", "swiftkv-50", "swiftkv-50-across2/fp8")), 1.5),
        Claim("gqa-mha", "8B: AcrossKV-GQA is the best design: better than MHA", "paper, App. C", minus(*average("tableC1", "small", "swiftkv-50-across4", "swiftkv-50-mha")), POSITIVE, POSITIVE, "points", kl=True),
        Claim("gqa-mqa", "8B: MQA is about 17 points below AcrossKV-GQA", "paper, App. C", minus(*average("tableC1", "small", "swiftkv-50-across4", "swiftkv-50-mqa")), (16.5, 17.5), POSITIVE, "points", "the text states a 37.5 % smaller cache for MQA; 1 KV head of 8 saves 43.75 %", kl=True),
        Claim("mha-across16", "8B: AcrossKV-MHA is worse than 16-way AcrossKV", "paper, App. C", minus(*average("table2", "small", "swiftkv-50-across16"), *average("tableC1", "small", "swiftkv-50-mha")), POSITIVE, POSITIVE, "points"),
    ],
    "Data and early exit, Appendices D and E": [
        Claim("data-quality", "8B: the base model fine-tuned on the data is below the Instruct model, 65.77 against 73.71", "paper, App. D", minus(*average("tableD1", "small", "baseline"), *average("tableD1", "base", "fine-tuned")), (7.935, 7.945), POSITIVE, "points"),
        Claim("math-average", "8B: math and code data add 0.23 points", "paper, App. D", minus(*average("tableD1", "small", "swiftkv-50-math-code", "swiftkv-50")), (0.225, 0.235), POSITIVE, "points", "83K samples and about 16M tokens beside the 1.2M samples; at smaller scales they replace chats, where the paper adds", kl=True),
        Claim("math-gsm8k", "8B: GSM8K improves by 0.53", "paper, App. D", minus(*average("tableD1", "small", "swiftkv-50-math-code", "swiftkv-50", metric="gsm8k")), (0.525, 0.535), POSITIVE, "points"),
        Claim("math-arc", "8B: all but Winogrande improve: ARC-Challenge", "paper, App. D", minus(*average("tableD1", "small", "swiftkv-50-math-code", "swiftkv-50", metric="arc-challenge")), POSITIVE, POSITIVE, "points"),
        Claim("math-gsm8k-most", "8B: GSM8K improves the most: more than ARC-Challenge", "paper, App. D", minus(*average("tableD1", "small", "swiftkv-50-math-code", "swiftkv-50", metric="gsm8k"), *average("tableD1", "small", "swiftkv-50-math-code", "swiftkv-50", metric="arc-challenge")), POSITIVE, POSITIVE, "points", "0.53 against 0.51 points in Table D.1"),
        Claim("math-hellaswag", "8B: all but Winogrande improve: HellaSwag", "paper, App. D", minus(*average("tableD1", "small", "swiftkv-50-math-code", "swiftkv-50", metric="hellaswag")), POSITIVE, POSITIVE, "points"),
        Claim("math-truthfulqa", "8B: all but Winogrande improve: TruthfulQA", "paper, App. D", minus(*average("tableD1", "small", "swiftkv-50-math-code", "swiftkv-50", metric="truthfulqa")), POSITIVE, POSITIVE, "points"),
        Claim("math-mmlu", "8B: all but Winogrande improve: MMLU", "paper, App. D", minus(*average("tableD1", "small", "swiftkv-50-math-code", "swiftkv-50", metric="mmlu")), POSITIVE, POSITIVE, "points"),
        Claim("math-mmlu-cot", "8B: all but Winogrande improve: MMLU-CoT", "paper, App. D", minus(*average("tableD1", "small", "swiftkv-50-math-code", "swiftkv-50", metric="mmlu-cot")), POSITIVE, POSITIVE, "points"),
        Claim("math-winogrande", "8B: Winogrande does not improve", "paper, App. D", minus(*average("tableD1", "small", "swiftkv-50-math-code", "swiftkv-50", metric="winogrande")), (None, 0), (None, 0), "points"),
        Claim("early-exit", "early exit and final prediction agree in over 66 % where the early exit is over 95 % sure", "paper, App. D.1; App. E", cell(Cell("figureD1", "bin_alignment_percent", "small", "swiftkv-50-early-exit", at=0.95)), (66, None), (50, None), "%", "the model is not named"),
    ],
    "Batch inference, Sec. 4.3 and the blog": [
        faster("throughput-2x", "up to 2x the throughput", "paper, Abstract; Sec. 1", most(speedup("figure3", "large", SWIFTKV)), (1.95, None), note="names no model; Sec. 4.3 has 1.8 to 2.0x for 70B"),
        faster("blog-2x", "up to 2x of throughput, latency and cost", "blog, Introduction", most(speedup("blog_figure3", "large", SWIFTKV)), (1.95, None), note="names no model; of throughput here"),
        Claim("faster-8b", "8B: faster than the baseline on every workload", _43, least(speedup("figure3", "small", SWIFTKV)), (1, None), (1, None), "×"),
        Claim("faster-70b", "70B: faster than the baseline on every workload", _43, least(speedup("figure3", "large", SWIFTKV)), (1, None), (1, None), "×"),
        faster("speedup-8b-2k", "8B: 1.2 to 1.3x at 2K input tokens", _43, cell(speedup("figure3", "small", length=2000)), (1.15, 1.35)),
        faster("speedup-8b-128k", "8B: 1.8 to 1.9x at 128K", _43, cell(speedup("figure3", "small", length=128000)), (1.75, 1.95)),
        faster("speedup-70b-2k", "70B: 1.4 to 1.5x at 2K", _43, cell(speedup("figure3", "large", length=2000)), (1.35, 1.55)),
        faster("speedup-70b-128k", "70B: 1.8 to 2.0x at 128K", _43, cell(speedup("figure3", "large", length=128000)), (1.75, 2.05)),
        Claim("longer-8b", "8B: greater improvements with longer inputs", _43, Quantity("rises", (speedup("figure3", "small"),)), POSITIVE, POSITIVE),
        Claim("longer-70b", "70B: greater improvements with longer inputs", _43, Quantity("rises", (speedup("figure3", "large"),)), POSITIVE, POSITIVE),
        Claim("across4-faster", "70B: AcrossKV improves throughput further", _43, ratio(speedup("figure3", "large", "swiftkv-50-across4", length=LONGEST), speedup("figure3", "large", length=LONGEST)), (1, None), (1, None), "×", "names neither model nor length; the longest input here"),
        reaches("tokens-8b", "8B: 30K tokens/s a GPU at 8K", "paper, Sec. 4.3; blog, Batch Inference", most(speedup("figure3", "small", SWIFTKV, "tokens_per_second_per_gpu", length=8000)), 29500, "tokens/s", "the blog's Table 1 has 25.2k at 4K and 23.5k at 16K"),
        reaches("tflops-8b", "8B: 480 TFLOPS a GPU at 8K", _43, most(speedup("figure3", "small", SWIFTKV, "normalized_tflops_per_gpu", length=8000)), 475, "TFLOP/s"),
        reaches("tokens-70b", "70B: over 16K tokens/s on 4 H100 at 8K", "paper, Abstract; Sec. 4.3", most(speedup("figure3", "large", SWIFTKV, "tokens_per_second", length=8000)), 16000, "tokens/s", "the blog's Table 1 has 13.2k at 4K and 12.8k at 16K"),
        reaches("tflops-70b", "70B: 560 TFLOPS a GPU at 8K", "paper, Abstract; Sec. 1; Sec. 4.3", most(speedup("figure3", "large", SWIFTKV, "normalized_tflops_per_gpu", length=8000)), 564, "TFLOP/s", _PARAMETERS),
        reaches("mfu-70b", "70B: 56.6 % MFU", "paper, Sec. 1", most(speedup("figure3", "large", SWIFTKV, "mfu_percent", length=8000)), 57, "%", _PARAMETERS),
        Claim("blog-faster-8b", "8B: faster than the baseline on every workload", _BLOG, least(speedup("blog_figure3", "small", SWIFTKV)), (1, None), (1, None), "×"),
        Claim("blog-faster-70b", "70B: faster than the baseline on every workload", _BLOG, least(speedup("blog_figure3", "large", SWIFTKV)), (1, None), (1, None), "×"),
        reaches("node-8b", "8B: 240K tokens/s on 8 H100 at 8K", _BLOG, most(speedup("blog_figure3", "small", SWIFTKV, "node_tokens_per_second", length=8000)), 235000, "tokens/s", "8 servers of 1 GPU, one of them measured; the blog's Table 1 has 8 times 25.2k at 4K"),
        reaches("node-70b", "70B: 32K tokens/s on 8 H100 at 8K", _BLOG, most(speedup("blog_figure3", "large", SWIFTKV, "node_tokens_per_second", length=8000)), 31500, "tokens/s", "2 servers of 4 GPUs, one of them measured; the blog's Table 1 has twice 13.2k at 4K"),
        reaches("blog-tflops-8b", "8B: 480 TFLOPS a GPU at 8K", _BLOG, most(speedup("blog_figure3", "small", SWIFTKV, "normalized_tflops_per_gpu", length=8000)), 475, "TFLOP/s"),
        reaches("blog-tflops-70b", "70B: 560 TFLOPS a GPU at 8K", _BLOG, most(speedup("blog_figure3", "large", SWIFTKV, "normalized_tflops_per_gpu", length=8000)), 564, "TFLOP/s", _PARAMETERS),
        reaches("blog-mfu-70b", "70B: over 56 % of the hardware peak at 8K", _BLOG, most(speedup("blog_figure3", "large", SWIFTKV, "mfu_percent", length=8000)), 56, "%"),
        faster("blog-8b-2k", "8B: 1.2 to 1.5x at 2K", _BLOG, cell(speedup("blog_figure3", "small", length=2000)), (1.15, 1.55)),
        faster("blog-70b-2k", "70B: 1.2 to 1.5x at 2K", _BLOG, cell(speedup("blog_figure3", "large", length=2000)), (1.15, 1.55)),
        faster("blog-8b-128k", "8B: 1.8 to 2x at 128K", _BLOG, cell(speedup("blog_figure3", "small", length=128000)), (1.75, 2.05)),
        faster("blog-70b-128k", "70B: 1.8 to 2x at 128K", _BLOG, cell(speedup("blog_figure3", "large", length=128000)), (1.75, 2.05)),
        faster("fp8-70b-least", "70B in FP8: 1.4 to 1.5x the FP8 baseline, at the least", _BLOG, least(speedup("blog_figure4", "large_fp8")), (1.35, 1.55)),
        faster("fp8-70b-most", "70B in FP8: 1.4 to 1.5x the FP8 baseline, at the most", _BLOG, most(speedup("blog_figure4", "large_fp8")), (1.35, 1.55)),
        faster("fp8-405b-least", "405B in FP8: 1.4 to 1.5x the FP8 baseline, at the least", _BLOG, least(speedup("blog_figure4", "huge")), (1.35, 1.55)),
        faster("fp8-405b-most", "405B in FP8: 1.4 to 1.5x the FP8 baseline, at the most", _BLOG, most(speedup("blog_figure4", "huge")), (1.35, 1.55)),
        reaches("fp8-tflops-70b", "up to 770 TFLOPS a GPU in FP8: 70B", _BLOG, most(speedup("blog_figure4", "large_fp8", metric="normalized_tflops_per_gpu")), 765, "TFLOP/s", _BOTH),
        reaches("fp8-tflops-405b", "up to 770 TFLOPS a GPU in FP8: 405B", _BLOG, most(speedup("blog_figure4", "huge", metric="normalized_tflops_per_gpu")), 765, "TFLOP/s", _BOTH),
        faster("fp8-bf16", "in FP8 up to 2.3x the BF16 baseline", _BLOG, most(speedup("blog_figure4", "large_fp8", metric="speedup_over_first_model")), (2.25, None), note="the blog names no model; that it is 70B is ours"),
        Claim("few-prompts", "little or no gain where few prompt tokens meet many outputs", "blog, Scope", cell(Cell("decode", "decode_ratio", "small", at=HIGHEST, gpus=1)), (0.95, 1.05), (0.85, None), "×", "no number is stated; time of a step that only decodes, over the baseline's, 5 % taken as none"),
        Claim("blog-ratio", "10 prompt tokens for each generated one", "blog, Figure 2; paper, Sec. 1", cell(Cell("blog_figure2", "prompt_tokens_per_generated_token", "small", "baseline")), (9.5, 10.5)),
    ],
    "Interactive inference, Sec. 4.3 and the blog": [
        faster("rate-70b-least", "70B: 1.5 to 2.0x the arrival rate before TTFT explodes, at the least", _43, least(rate("figure4", "large")), (1.45, None)),
        faster("rate-70b-most", "70B: up to 2.0x the arrival rate", _43, most(rate("figure4", "large")), (1.95, None)),
        Claim("ttft-70b", "70B: up to 50 % lower TTFT at low rates and long inputs", "paper, Sec. 1; Sec. 4.3", most(reduction("figure4", "large", "ttft", length=_LONG, at=LOWEST)), (49.5, None), (5, None), "%"),
        Claim("tpot-70b", "70B: up to 60 % lower TPOT", "paper, Abstract; Sec. 1; Sec. 4.3", most(reduction("figure4", "large", "tpot")), (59.5, None), (5, None), "%"),
        Claim("tpot-rates-70b", "70B: lower TPOT at all but the lowest rates", _43, least(reduction("figure4", "large", "tpot", at="loaded")), (5, None), (0, None), "%", _LOADED),
        faster("rate-8b-least", "8B alike: 1.5 to 2.0x the arrival rate, at the least", "paper, Sec. 4.3; App. B.2", least(rate("figureB1", "small")), (1.45, None), note=_ALIKE),
        faster("rate-8b-most", "8B alike: up to 2.0x the arrival rate", "paper, Sec. 4.3; App. B.2", most(rate("figureB1", "small")), (1.95, None), note=_ALIKE),
        Claim("ttft-8b", "8B alike: lower TTFT at low rates and long inputs", "paper, Sec. 4.3; App. B.2", most(reduction("figureB1", "small", "ttft", length=_LONG, at=LOWEST)), (5, None), (5, None), "%", _ALIKE),
        Claim("tpot-rates-8b", "8B alike: lower TPOT at all but the lowest rates", "paper, Sec. 4.3; App. B.2", least(reduction("figureB1", "small", "tpot", at="loaded")), (5, None), (0, None), "%", _LOADED),
        faster("blog-rate-70b-least", "70B: 1.5 to 2.0x the arrival rate, at the least", _LATENCY, least(rate("blog_figure5", "large")), (1.45, None)),
        faster("blog-rate-70b-most", "70B: up to 2.0x the arrival rate", _LATENCY, most(rate("blog_figure5", "large")), (1.95, None)),
        Claim("blog-ttft-70b", "70B: up to 50 % lower TTFT at low rates and longer inputs", _LATENCY, most(reduction("blog_figure5", "large", "ttft", length=_LONG, at=LOWEST)), (49.5, None), (5, None), "%", "the lengths are those of the paper's Figure 4"),
        Claim("blog-tpot-70b", "70B: up to 61 % lower TPOT", _LATENCY, most(reduction("blog_figure5", "large", "tpot")), (60.5, None), (5, None), "%", "the paper says 60 %"),
        Claim("blog-tpot-rates-70b", "70B: lower TPOT at all but the lowest rates", _LATENCY, least(reduction("blog_figure5", "large", "tpot", at="loaded")), (5, None), (0, None), "%", _LOADED),
        Claim("blog-tpot-lowest", "70B: TPOT is not reduced at the lowest rates", _LATENCY, most(reduction("blog_figure5", "large", "tpot", at=LOWEST)), (None, 5), (None, 10), "%", _NO_LOAD),
        faster("blog-rate-405b-least", "405B: 1.5 to 2.0x the arrival rate, at the least", _LATENCY, least(rate("blog_figure6", "huge")), (1.45, None)),
        faster("blog-rate-405b-most", "405B: up to 2.0x the arrival rate", _LATENCY, most(rate("blog_figure6", "huge")), (1.95, None)),
        Claim("blog-ttft-405b", "405B is very similar: lower TTFT at low rates and longer inputs", _LATENCY, most(reduction("blog_figure6", "huge", "ttft", length=_LONG, at=LOWEST)), (5, None), (5, None), "%", '"very similar", no number'),
        Claim("blog-tpot-405b", "405B: up to 68 % lower TPOT", _LATENCY, most(reduction("blog_figure6", "huge", "tpot")), (67.5, None), (5, None), "%"),
        Claim("blog-tpot-rates-405b", "405B: lower TPOT at all but the lowest rates", _LATENCY, least(reduction("blog_figure6", "huge", "tpot", at="loaded")), (5, None), (0, None), "%", _LOADED),
        Claim("blog-tpot-lowest-405b", "405B: TPOT is not reduced at the lowest rates", _LATENCY, most(reduction("blog_figure6", "huge", "tpot", at=LOWEST)), (None, 5), (None, 10), "%", _NO_LOAD),
        Claim("blog-speculation", "with speculation SwiftKV reduces TPOT also at the lowest rate", _LATENCY, cell(speedup("blog_figure7", "large", "swiftkv-50", "tpot_reduction_percent", at=("speculative", LOWEST))), (5, None), (0, None), "%", "against the baseline without speculation; the blog states neither the model nor a number, and names Medusa and MLP-Speculator as speculation, where here n-grams speculate"),
        Claim("forward", "8B: a forward pass is shorter at every batch size", "paper, Figure 2", least(speedup("figure2", "small", SWIFTKV, "forward_speedup")), (1, None), (1, None), "×"),
    ],
    "Compute against memory, Sec. 5.1 and the blog's Table 1": [
        Claim("merge-80", "Merge-all-Layers is only 10 % better than the baseline at 80 GB", _51, cell(limited("merge-all-layers", (HIGHEST, 80), metric="speedup")), (1.095, 1.105), (None, 1.2), "×"),
        faster("single-80", "SingleInputKV is 35 % better than the baseline at 80 GB", _51, cell(limited("swiftkv-50", (HIGHEST, 80), metric="speedup")), (1.345, 1.355), note="the paper states neither the length nor the number of the requests"),
        Claim("merge-below-80", "Merge-all-Layers does not outperform SingleInputKV at 80 GB", _51, ratio(limited("merge-all-layers", (HIGHEST, 80)), limited("swiftkv-50", (HIGHEST, 80))), (None, 1), (None, 1), "×"),
        Claim("merge-below-40", "Merge-all-Layers does not outperform SingleInputKV at 40 GB", "paper, Table 5", ratio(limited("merge-all-layers", 40), limited("swiftkv-50", 40)), (None, 1), (None, 1), "×", own=True),
        Claim("merge-above-20", "Merge-all-Layers outperforms at 20 GB", _51, ratio(limited("merge-all-layers", 20), limited("swiftkv-50-across4", 20, "fp8")), (1, None), (1, None), "×", _FASTEST, own=True),
        Claim("across4-20", "AcrossKV helps where memory is short: 4-way against SingleInputKV at 20 GB", "blog, Optimizing memory", ratio(limited("swiftkv-50-across4", 20), limited("swiftkv-50", 20)), (1.05, None), (1, None), "×", "18.0K against 12.2K in Table 5", own=True),
        Claim("across4-fp8-20", "4-way AcrossKV with FP8 approaches Merge-all-Layers at 20 GB", _51, ratio(limited("swiftkv-50-across4", 20, "fp8"), limited("merge-all-layers", 20)), (0.9, None), (0.85, None), "×", "no number is stated; 23.2K against 25.2K in Table 5", own=True),
        Claim("merge-above-16", "Merge-all-Layers outperforms at 16 GB", _51, ratio(limited("merge-all-layers", (LOWEST, 16)), limited("swiftkv-50-across4", (LOWEST, 16), "fp8")), (1, None), (1, None), "×", _FASTEST),
        Claim("oom-baseline", "the baseline is out of memory at 16 GB", "paper, Table 5", Quantity("status", (limited("baseline", (LOWEST, 16)),)), "oom"),
        Claim("oom-single", "SingleInputKV alone is out of memory at 16 GB", "paper, Table 5", Quantity("status", (limited("swiftkv-50", (LOWEST, 16)),)), "oom"),
        Claim("runs-across4", "4-way AcrossKV runs at 16 GB", "paper, Table 5", Quantity("status", (limited("swiftkv-50-across4", (LOWEST, 16)),)), "ok"),
        faster("blog-t1-8b-least", "8B: SwiftKV improves throughput by 40 to 50 %, at the least", _COMPUTE, least(speedup("blog_table1", "small")), (1.395, None), note="the blog's Table 1 itself has 1.38x at 4K; taken as over the baseline, though \"as compared to compression-only approaches\" may mean over Merge-all-Layers"),
        faster("blog-t1-8b-most", "8B: by 40 to 50 %, at the most", _COMPUTE, most(speedup("blog_table1", "small")), (1.395, 1.505)),
        faster("blog-t1-70b-least", "70B: SwiftKV improves throughput by 40 to 50 %, at the least", _COMPUTE, least(speedup("blog_table1", "large")), (1.395, None)),
        faster("blog-t1-70b-most", "70B: by 40 to 50 %, at the most", _COMPUTE, most(speedup("blog_table1", "large")), (1.395, 1.505), note="the blog's Table 1 itself has 1.56x at 16K"),
        Claim("blog-t1-modest-8b", "8B: Merge-all-Layers gains less than SwiftKV", _COMPUTE, minus(speedup("blog_table1", "small", length=(LONGEST, 16000)), speedup("blog_table1", "small", "merge-all-layers", length=(LONGEST, 16000))), POSITIVE, POSITIVE),
        Claim("blog-t1-modest-70b", "70B: Merge-all-Layers gains less than SwiftKV", _COMPUTE, minus(speedup("blog_table1", "large", length=(LONGEST, 16000)), speedup("blog_table1", "large", "merge-all-layers", length=(LONGEST, 16000))), POSITIVE, POSITIVE),
    ],
}
# fmt: on


def claims() -> Iterator[Claim]:
    """All claims."""
    for section in SECTIONS.values():
        yield from section


def cells(claim: Claim) -> Sequence[Cell]:
    """The cells that a claim is judged by; none of an arithmetic one."""
    return claim.quantity.cells if isinstance(claim.quantity, Quantity) else ()


ARTIFACTS = tuple(dict.fromkeys(cell.artifact for claim in claims() for cell in cells(claim)))
ARCHITECTURES = tuple(
    dict.fromkeys(
        name
        for claim in claims()
        if isinstance(claim.quantity, Arithmetic)
        for name in claim.quantity.arguments
        if isinstance(name, str) and name not in ("paper", "blog")
    )
)
