"""What may differ between two runs of a scale on two machines, and by how much; every line with its reason.

Where two machines were compared, they are those of docs/measurements/2026-11-24-local.md (Intel Xeon with AMX) and an
AMD EPYC with AVX-512, which ran the same settings in the same week: seven variants, three measures of closeness, two benchmarks.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

ROUNDING = 1e-9  # of a number that is computed in one way on every machine

SPEED = "speeds, times and what follows from them are those of a machine"
WORDS = "words and answers, of which the numbers are compared"
ERRORS_OF = "single values and errors of what is compared as a whole"
BY_MACHINE = "how a machine computes: threads, number format, commands, libraries, constants"


@dataclass(frozen=True)
class Tolerance:
    """How far a number may lie from the reference run's; anything else has to be equal.

    Attributes:
        where: pattern of `<measure>:<section>.<key>...`, in which * is anything.
        reason: why so far, or why it is not compared.
        compared: whether it is.
        errors: standard errors of the difference.
        share: of the reference's number.
        absolute: in the number's unit.
    """

    where: str
    reason: str
    compared: bool = True
    errors: float = 0.0
    share: float = ROUNDING
    absolute: float = 0.0


def _not(reason: str, *patterns: str) -> list[Tolerance]:
    return [Tolerance(pattern, reason, compared=False) for pattern in patterns]


# The first that matches counts.
TOLERANCES = (
    # What was asked, of what: another experiment, if it differs.
    *_not(
        BY_MACHINE,
        "*:settings.threads",
        "*:settings.ranks",
        "*:settings.command",
        "*:settings.memory",
        "*:engine.vllm",
        "*:engine.attention_backend",
        "*:engine.kv_cache_gib",
        "*:engine.dtype",
        "*:settings.dtype",
        "kv_capacity:result.kv_cache_bytes",
        "training:result.attention",
        "training:result.gpus",
        "training:result.accelerator",
    ),
    *_not(WORDS, "score:settings.*_example", "*:reason", "*:result.what", "*:result.criterion"),
    Tolerance("*:settings.*", "settings are those of the configuration"),
    Tolerance("*:model.*", "the model's source is fixed"),
    Tolerance("*:data.*", "texts and questions are fixed"),
    Tolerance("*:checkpoint.*", "published weights are fixed"),
    Tolerance("*:spec.*", "the wiring follows from the configuration"),
    Tolerance("*:cost.*", "FLOPs and bytes follow from the model's dimensions"),
    Tolerance("*:engine.*", "vLLM runs in the same way, with a cache of a stated size"),
    # Scores
    *_not(ERRORS_OF, "score:result.questions.values", "score:result.stderr"),
    Tolerance("score:result.questions.sha256", "the same questions, prompts and expected answers"),
    Tolerance("*:result.fp8_keys.largest", "bfloat16 keys, one of which is the largest", share=0.05),
    Tolerance("*:result.fp8_keys.*", "a constant of the format"),
    Tolerance(
        "score:result",
        "errors are those of the answers that changed; 5 % for trainings that round otherwise (bits per byte)",
        errors=3,
        share=0.05,
    ),
    Tolerance("score:result.*", "counts of questions are fixed"),
    # Closeness to the teacher, on the same chats, so errors over chats do not count.
    Tolerance("fidelity:result.chats.positions", "the same chats, cut at the same token"),
    *_not(ERRORS_OF, "fidelity:result.chats.*"),
    *(
        Tolerance(f"*.{name}.stderr", "two machines: at most 10 %", share=0.25)
        for name in ("kl", "answer_kl", "top1_agreement", "perplexity")
    ),
    *_not(ERRORS_OF, "*.stderr"),
    Tolerance("*.answer_kl", "as of all positions, which are three times as many", share=0.08, absolute=0.005),
    Tolerance("*.kl", "two machines: at most 0.5 %; 0.003 nats for rounding alone", share=0.05, absolute=0.003),
    Tolerance("*.top1_agreement", "two machines: at most 0.9 points", absolute=0.025),
    Tolerance("*.perplexity", "two machines: at most 2.2 %", share=0.06),
    # Similarity
    *_not(ERRORS_OF, "similarity:result.*_stderr"),
    *(
        Tolerance(f"similarity:result.{name}", "means over thousands of tokens of cosines in bfloat16", absolute=0.01)
        for name in ("simscore", "pairwise")
    ),
    # Early exit
    Tolerance("early_exit:result.alignment.all.positions", "the same chats, cut at the same token"),
    *_not(ERRORS_OF, "early_exit:result.alignment.bins.*"),
    *_not(WORDS, "early_exit:result.answers.*", "answer:result.*text"),
    *_not(WORDS, "answer:result.tokens", "answer:result.baseline_tokens"),
    *_not(SPEED, "early_exit:result.decoding.seconds_per_token.*"),
    Tolerance("early_exit:result.alignment.above_threshold.positions", "two machines: at most 1 %", share=0.15),
    Tolerance("early_exit:result.*.agreement", "another training, on the same chats", errors=2),
    Tolerance("early_exit:result.decoding.exited", "another training answers otherwise", errors=2),
    Tolerance(
        "early_exit:result.decoding.equal_tokens", "one other token changes all that follow", errors=2, absolute=0.02
    ),
    Tolerance("early_exit:result.decoding.time_ratio", "a ratio of times on another machine", errors=2, share=0.25),
    # Trainings
    *_not(SPEED, "training:result.*seconds*", "training:result.hours", "training:result.*_per_second*"),
    Tolerance("training:result.loss_first", "before the first step only rounding differs", share=0.02),
    Tolerance("training:result.loss_last", "one batch, after steps that round otherwise", share=0.1),
    # Serving: ratios of turns with the baseline, as `compare` finds them.
    Tolerance("*:speedup on the same processor*", "two runs in an hour: up to 11 % apart", errors=2, share=0.1),
    Tolerance("*:speedup on another processor*", "two machines: 1.55 and 1.85 at 2,000 tokens", errors=2, share=0.25),
    *_not(
        SPEED,
        "latency:result.*",
        "throughput:result.*second*",
        "throughput:result.*_per_gpu",
        "throughput:result.mfu_percent",
        "forward_time:result.*seconds*",
        "decode:result.*_ms*",
        "decode:result.steps",
        "answer:result.*_ms",
        "answer:result.*seconds",
    ),
    Tolerance("*:result.*", "counts, sizes and reductions are fixed"),
    Tolerance("*:status", "memory is limited by the configuration"),
)


def tolerance(path: str) -> Tolerance:
    """The tolerance of a quantity; `path` is as in `Tolerance.where`."""
    return next(
        (one for one in TOLERANCES if fnmatchcase(path, one.where)),
        Tolerance(path, "nothing is known that could change it"),
    )
