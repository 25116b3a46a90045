"""Points measured on an engine without a server: batch throughput, single steps, answers, and KV capacity.

The paper's Figure 2 shows "the time per forward pass" "across a range of batch sizes", but the paper does not say what is
in a batch. Here it is prompt tokens, the ones SwiftKV saves work on: one prompt of B tokens in one step of the engine.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, ClassVar

from pipeline.engines.log import EngineFailure, cache_size
from pipeline.measure.point import CACHE_BYTES, Point
from pipeline.measure.subject import BASELINE
from pipeline.measure.turns import VARIANT, Run, samples
from pipeline.prompts import choose_questions, plain_tokenizer, question_prompt
from pipeline.records import hardware
from swiftkv.cost import GIBI, Dimensions, parameter_count, passed_parameters

# The GPUs whose utilization is stated, by CUDA's name, and their dense TFLOP/s by quantization, as their data sheets have them;
# of Hopper SXM boards, as PCIe and NVL ones have other clocks.
_PEAKS: Mapping[str, Mapping[str | None, float]] = {
    r"NVIDIA (H100 80GB HBM3|H200|H800)": {None: 989.4, "fp8": 1978.9},
    r"NVIDIA A100[- ](?!.*MIG).*": {None: 312.0},
}


class Throughput(Point):
    """All requests at once, as token ids (Fig. 3, Table 5; Appendix B.2)."""

    headline_format = (
        "{tokens_per_second:.1f} tokens/s, {decode_only_percent:.0f} % of the time in steps that only decode"
    )

    @property
    def recorded(self) -> dict[str, Any]:
        return super().recorded | {"num_prompts": self.number_of_prompts}

    @property
    def number_of_prompts(self) -> int:
        """Requests whose input and output tokens together are about `total_tokens`; at least one."""
        return max(1, round(self.settings.total_tokens / sum(self.lengths)))

    @property
    def warm_up(self) -> dict[str, Any] | None:
        """The job before the clock starts, of requests of at most one full step of prompt; None where there is none."""
        (prompt, output), chunk = self.lengths, self.engine["max_num_batched_tokens"]
        job = {"do": "throughput", "prompts": self.settings.warmups, "seed": self.seed + 1}
        return job | {"input": min(prompt, chunk), "output": min(output, 8)} if self.settings.warmups else None

    def numbers(self, run: Run) -> dict[str, Any]:
        """Warm up, then send all requests, as often as asked; the speed is that of the median time."""
        (prompt, output), subject = self.lengths, run.subject
        job = {"do": "throughput", "prompts": self.number_of_prompts, "seed": self.seed}
        job |= {"input": prompt, "output": output}
        answers = run.alternate([job] * self.repeats(subject.variant), self.warm_up)
        gpus = hardware()["gpus"] if self.gpus else []
        peak = peak_tflops(gpus[0], self.dtype, subject.quantization) if gpus else None
        times = samples(answers, "seconds", itemgetter("seconds"))
        shares = [100 * answer["decode_only_seconds"] / answer["seconds"] for answer in answers[VARIANT]]
        speed = self.result(subject.config, statistics.median(times["samples_seconds"]), peak)
        return speed | {"decode_only_percent": statistics.median(shares)} | times

    def result(self, config: Mapping[str, Any], seconds: float, peak: float | None) -> dict[str, Any]:
        """The result of all requests in so many seconds.

        Normalized TFLOP/s are those of the unchanged model for the same tokens on any variant, 2 FLOPs a parameter and token
        (paper's footnote 2); of a model with experts, those that a token passes count. `mfu_percent` is their share of the
        GPU's dense peak.

        Args:
            config: config.json of the model.
            peak: dense TFLOP/s of a GPU; None where that is not known.
        """
        (prompt, output), prompts, devices = self.lengths, self.number_of_prompts, self.tensor_parallel_size
        tokens = prompts * (prompt + output)
        rate = tokens / seconds
        arch = Dimensions.from_config(config)
        parameters = passed_parameters(arch) if arch.experts else parameter_count(config)
        normalized = rate * 2 * parameters / devices / 1e12
        return {
            "tokens_per_second": rate,
            "tokens_per_second_per_gpu": rate / devices,
            "seconds": seconds,
            "num_prompts": prompts,
            "tokens": tokens,
            "normalized_tflops_per_gpu": normalized,
            "mfu_percent": None if peak is None else 100 * normalized / peak,
        }


def peak_tflops(gpu: str, dtype: str, quantization: str | None) -> float | None:
    """Dense TFLOP/s of a GPU, named as by CUDA, in the number format that is served; None where one is not known."""
    if quantization is None and dtype not in ("bfloat16", "float16"):
        return None
    peaks = next((peaks for names, peaks in _PEAKS.items() if re.fullmatch(names, gpu)), {})
    return peaks.get(quantization)


class Batches(Point):
    """Times of every batch on one engine, each after one to warm up.

    Attributes:
        axis: the setting that has the batches, and the result's name for them.
        times: the result's name for the medians and extremes over repeats; `unit` is that of the samples.
        each: whether every repeat is warmed up, and not a batch once.
    """

    alone = True
    axis: ClassVar[str]
    times: ClassVar[str]
    unit: ClassVar[str]
    each: ClassVar[bool]

    def job(self, batch: int) -> dict[str, Any]:
        """The job of `engine_program` that measures a batch."""
        raise NotImplementedError

    def numbers(self, run: Run) -> dict[str, Any]:
        batches, repeats = getattr(self.settings, self.axis), self.repeats(run.subject.variant)
        answers: dict[str, list[list[dict[str, Any]]]] = {side: [] for side in run.starts}
        for job in map(self.job, batches):
            if not self.each:
                run.alternate([job])
            for side, found in run.alternate([job] * repeats, job if self.each else None).items():
                answers[side].append(found)
        scale = 1000 if self.unit == "ms" else 1
        times = samples(answers, self.unit, lambda one: scale * one["seconds"] / one.get("steps", 1))
        spread = {"median": statistics.median, "min": min, "max": max}
        return {
            self.axis: batches,
            self.times: {name: list(map(of, times[f"samples_{self.unit}"])) for name, of in spread.items()},
            **times,
            "steps": [[one.get("steps", 1) for one in batch] for batch in answers[VARIANT]],
            "repeats": repeats,
        }

    @classmethod
    def headline(cls, result: dict[str, Any]) -> str:
        times = zip(result[cls.axis], result[cls.times]["median"], strict=True)
        return f"{cls.axis}: " + ", ".join(f"{batch} in {time:.4g} {cls.unit}" for batch, time in times)


class ForwardTime(Batches):
    """One engine step that computes a prompt in one forward pass and samples a token, scheduling included (Fig. 2, right)."""

    single = each = True
    axis, times, unit = "batch_tokens", "seconds", "seconds"

    @property
    def lengths(self) -> tuple[int, int]:
        """The largest batch, and the token sampled after it."""
        return max(self.settings.batch_tokens), 1

    def job(self, batch: int) -> dict[str, Any]:
        return {"do": "throughput", "prompts": 1, "input": batch, "output": 1, "seed": self.seed}


class Decode(Batches):
    """Engine steps that decode one token of every request of a batch, scheduling included; no prompt is computed in them."""

    each = False
    axis, times, unit = "batch_sizes", "tpot_ms", "ms"

    def job(self, batch: int) -> dict[str, Any]:
        prompt, output = self.lengths
        return {"do": "decode", "batch": batch, "input": prompt, "output": output, "seed": self.seed}


class Answer(Point):
    """Questions about a passage each, as a user asks them: answers, and the times to first tokens (ms).

    Answers are scored as SQuAD's are, by the best of the accepted ones after its normalization; a small model writes
    sentences, so it also counts whether an accepted answer is contained. Not in the paper.
    """

    alone = True
    headline_format = "first token after {first_token_ms:.0f} ms"

    def numbers(self, run: Run) -> dict[str, Any]:
        """Ask each side the same questions, batch by batch in turns.

        Raises:
            UserError: the file of questions is missing or damaged.
        """
        from transformers.data.metrics.squad_metrics import compute_exact, compute_f1, normalize_answer

        scores = {
            "exact_match": compute_exact,
            "contained": lambda right, text: int(f" {normalize_answer(right)} " in f" {normalize_answer(text)} "),
            "f1": compute_f1,
        }

        (_, output), tokenizer, size = self.lengths, plain_tokenizer(run.subject.folder), self.settings.batch
        drawn = choose_questions(run.chats, **self.settings.draw)[: self.settings.questions]
        prompts = [question_prompt(tokenizer, texts[:3]) for texts in drawn]
        job = {"do": "reply", "output": output, "stop": [tokenizer.eos_token_id]}
        jobs = [job | {"prompts": prompts[start : start + size]} for start in range(0, len(prompts), size)]
        found = run.alternate(jobs, warm_up=job | {"prompts": prompts[:1], "output": 1})
        answers = {}
        for side, replies in found.items():
            texts = tokenizer.batch_decode(sum((reply["tokens"] for reply in replies), []), skip_special_tokens=True)
            answers[side] = {"text": texts} | {
                name: [max(score(right, text) for right in asked[3:]) for asked, text in zip(drawn, texts, strict=True)]
                for name, score in scores.items()
            }
        first = samples(found, "ms", lambda reply: 1000 * reply["first_token_seconds"])
        return {
            "asked": [texts[2:] for texts in drawn],
            "answers": answers[VARIANT],
            "baseline_answers": answers.get(BASELINE),
            "first_token_ms": statistics.median(first["samples_ms"]),
            **first,
        }


class KvCapacity(Point):
    """KV capacity in tokens, as vLLM reports it after its own profiling: an engine is started and asked nothing."""

    headline_format = "{kv_cache_tokens} tokens"

    @property
    def recorded(self) -> dict[str, Any]:
        return {}

    def numbers(self, run: Run) -> dict[str, Any]:
        run.alternate([{"do": "ready"}])
        tokens, gib = cache_size(run.engines.text)
        if tokens is None:
            raise EngineFailure(
                f"vLLM did not say how many tokens its KV cache holds; what it printed is in {run.engines.log}"
            )
        size = run.memory.get(CACHE_BYTES)
        if size is None and gib is not None:
            size = int(gib * GIBI)  # printed with two decimals
        return {"kv_cache_tokens": tokens, "kv_cache_bytes": size}
