"""Points measured on an engine without a server: batch throughput, single steps, one answer, and KV capacity.

The paper's Figure 2 shows "the time per forward pass" "across a range of batch sizes", but the paper does not say what is
in a batch. Here it is prompt tokens, the ones SwiftKV saves work on: one prompt of B tokens in one step of the engine.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.measure.client import chat_openings
from pipeline.measure.engine import EngineFailure, cache_size
from pipeline.measure.point import BASELINE, CACHE_BYTES, Point
from pipeline.measure.turns import OWN, Run, samples
from pipeline.records import hardware
from swiftkv.cost import GIBI, Dimensions, parameter_count, request_flops

# The GPUs whose utilization is stated, by CUDA's name, and their dense TFLOP/s by quantization, as their data sheets have them;
# of Hopper SXM boards, as PCIe and NVL ones have other clocks.
_PEAKS: Mapping[str, Mapping[str | None, float]] = {
    r"NVIDIA (H100 80GB HBM3|H200|H800)": {None: 989.4, "fp8": 1978.9},
    r"NVIDIA A100[- ](?!.*MIG).*": {None: 312.0},
}


class Throughput(Point):
    """All requests at once, as token ids (Fig. 3, Table 5; Appendix B.2)."""

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
        answers = run.in_turns(job | {"input": prompt, "output": output}, self.repeats(subject.variant), self.warm_up)
        seconds = {side: [answer["seconds"] for answer in found] for side, found in answers.items()}
        gpus = hardware()["gpus"] if self.gpus else []
        peak = peak_tflops(gpus[0], self.dtype, subject.quantization) if gpus else None
        return self.result(subject.config, statistics.median(seconds[OWN]), peak) | samples(seconds, "seconds")

    def result(self, config: Mapping[str, Any], seconds: float, peak: float | None) -> dict[str, Any]:
        """The result of all requests in so many seconds.

        Normalized TFLOP/s are those of the unchanged model for the same tokens (paper's footnote 2), on any variant:
        `normalized_tflops_per_gpu` counts as the paper does, 2 FLOPs a parameter and token; `exact_tflops_per_gpu` counts
        what such a request needs, with attention. `mfu_percent` is the former's share of the GPU's dense peak.

        Args:
            config: config.json of the model.
            peak: dense TFLOP/s of a GPU; None where that is not known.
        """
        (prompt, output), prompts, devices = self.lengths, self.number_of_prompts, self.tensor_parallel_size
        tokens = prompts * (prompt + output)
        rate = tokens / seconds
        flops = sum(request_flops(Dimensions.from_config(config), None, prompt, output).values()) / (prompt + output)
        normalized = rate * 2 * parameter_count(config) / devices / 1e12
        return {
            "tokens_per_second": rate,
            "tokens_per_second_per_gpu": rate / devices,
            "seconds": seconds,
            "num_prompts": prompts,
            "tokens": tokens,
            "normalized_tflops_per_gpu": normalized,
            "exact_tflops_per_gpu": rate * flops / devices / 1e12,
            "mfu_percent": None if peak is None else 100 * normalized / peak,
        }

    @staticmethod
    def headline(result: dict[str, Any]) -> str:
        return f"{result['tokens_per_second']:.1f} tokens/s"


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
    """

    alone = True
    axis: ClassVar[str]
    times: ClassVar[str]
    unit: ClassVar[str]

    def measured(self, run: Run, batch: int, repeats: int) -> dict[str, list[tuple[float, int]]]:
        """Seconds and steps of all repeats of a batch, by side."""
        raise NotImplementedError

    def numbers(self, run: Run) -> dict[str, Any]:
        batches, scale = getattr(self.settings, self.axis), 1000 if self.unit == "ms" else 1
        repeats = self.repeats(run.subject.variant)
        found = [self.measured(run, batch, repeats) for batch in batches]
        times = {
            side: [[scale * seconds / steps for seconds, steps in one[side]] for one in found] for side in run.starts
        }
        spread = {"median": statistics.median, "min": min, "max": max}
        return {
            self.axis: batches,
            self.times: {name: list(map(of, times[OWN])) for name, of in spread.items()},
            **samples(times, self.unit),
            "steps": [[steps for _, steps in one[OWN]] for one in found],
            "repeats": repeats,
        }

    @classmethod
    def headline(cls, result: dict[str, Any]) -> str:
        scale = 1 if cls.unit == "ms" else 1000
        times = zip(result[cls.axis], result[cls.times]["median"], strict=True)
        return f"{cls.axis} " + ", ".join(f"{batch}: {scale * time:.4g} ms" for batch, time in times)


class ForwardTime(Batches):
    """One engine step that computes a prompt in one forward pass and samples a token, scheduling included (Fig. 2, right)."""

    single = True
    axis, times, unit = "batch_tokens", "seconds", "seconds"

    @property
    def lengths(self) -> tuple[int, int]:
        """The largest batch, and the token sampled after it."""
        return max(self.settings.batch_tokens), 1

    def measured(self, run: Run, batch: int, repeats: int) -> dict[str, list[tuple[float, int]]]:
        job = {"do": "throughput", "prompts": 1, "input": batch, "output": 1, "seed": self.seed}
        found = run.in_turns(job, repeats, warm_up=job)
        return {side: [(answer["seconds"], 1) for answer in answers] for side, answers in found.items()}


class Decode(Batches):
    """Engine steps that decode one token of every request of a batch, scheduling included; no prompt is computed in them."""

    axis, times, unit = "batch_sizes", "tpot_ms", "ms"

    def measured(self, run: Run, batch: int, repeats: int) -> dict[str, list[tuple[float, int]]]:
        prompt, output = self.lengths
        job = {"do": "decode", "batch": batch, "input": prompt, "output": output, "seed": self.seed}
        run.in_turns(job, 1)  # to warm up
        found = run.in_turns(job, repeats)
        return {side: [(answer["seconds"], answer["steps"]) for answer in answers] for side, answers in found.items()}


class Answer(Point):
    """One question as a user asks it: the answer, and the time to its first token (ms) and its last (s). Not in the paper."""

    alone = True

    @property
    def recorded(self) -> dict[str, Any]:
        return {"dataset": self.settings.dataset, "prompts": "the longest opening of a chat"}

    def numbers(self, run: Run) -> dict[str, Any]:
        """The question, the answers by side, and the times; greedy, so every turn gives the same answer."""
        from transformers import AutoTokenizer

        longest, output = self.lengths
        chats = chat_openings(run.subject.folder, run.heldout, longest, self.seed)
        question, prompt = max(chats, key=lambda chat: len(chat[1]))
        tokenizer = AutoTokenizer.from_pretrained(run.subject.folder)
        job = {"do": "reply", "prompt": prompt, "output": output, "stop": [tokenizer.eos_token_id]}
        found = run.in_turns(job, self.repeats(run.subject.variant), warm_up=job)
        first = {side: [1000 * answer["first_token_seconds"] for answer in answers] for side, answers in found.items()}
        whole = {side: [answer["seconds"] for answer in answers] for side, answers in found.items()}
        own, theirs = found[OWN][-1]["tokens"], found[BASELINE][-1]["tokens"] if BASELINE in found else None
        return {
            "question": question,
            "prompt_tokens": len(prompt),
            "text": tokenizer.decode(own, skip_special_tokens=True),
            "baseline_text": None if theirs is None else tokenizer.decode(theirs, skip_special_tokens=True),
            "tokens": len(own),
            "baseline_tokens": None if theirs is None else len(theirs),
            "first_token_ms": statistics.median(first[OWN]),
            "seconds": statistics.median(whole[OWN]),
            **samples(first, "ms"),
            **samples(whole, "seconds"),
        }

    @staticmethod
    def headline(result: dict[str, Any]) -> str:
        first, seconds = result["first_token_ms"], result["seconds"]
        return f"first token after {first:.0f} ms, {result['tokens']} tokens after {seconds:.2f} s"


class KvCapacity(Point):
    """KV capacity in tokens, as vLLM reports it after its own profiling: an engine is started and asked nothing."""

    @property
    def recorded(self) -> dict[str, Any]:
        return {}

    def numbers(self, run: Run) -> dict[str, Any]:
        run.in_turns({"do": "ready"}, 1)
        tokens, gib = cache_size(run.engines.text)
        if tokens is None:
            raise EngineFailure(
                f"vLLM did not say how many tokens its KV cache holds; what it printed is in {run.engines.log}"
            )
        size = run.memory.get(CACHE_BYTES)
        if size is None and gib is not None:
            size = int(gib * GIBI)  # printed with two decimals
        return {"kv_cache_tokens": tokens, "kv_cache_bytes": size}

    @staticmethod
    def headline(result: dict[str, Any]) -> str:
        return f"{result['kv_cache_tokens']} tokens"
