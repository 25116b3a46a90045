"""Points measured on an engine without a server: batch throughput, single steps, one answer, and KV capacity.

The paper's Figure 2 shows "the time per forward pass" "across a range of batch sizes", but the paper does not say what is
in a batch. Here it is prompt tokens, the ones SwiftKV saves work on: one prompt of B tokens in one step of the engine.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from typing import Any

from pipeline.config import points
from pipeline.measure.client import chat_openings
from pipeline.measure.engine import EngineFailure, cache_size
from pipeline.measure.point import BASELINE, Point
from pipeline.measure.turns import OWN, Run, in_turns, samples, sides
from pipeline.records import hardware
from swiftkv.cost import GIBI, Dimensions, parameter_count, request_flops
from swiftkv.errors import UserError

# The GPUs whose utilization is stated, by CUDA's name, and their dense TFLOP/s by quantization, as their data sheets have them;
# of Hopper SXM boards, as PCIe and NVL ones have other clocks.
_PEAKS: Mapping[str, Mapping[str | None, float]] = {
    r"NVIDIA (H100 80GB HBM3|H200|H800)": {None: 989.4, "fp8": 1978.9},
    r"NVIDIA A100[- ](?!.*MIG).*": {None: 312.0},
}


class Throughput(Point[points.Throughput]):
    """All requests at once, as token ids (Fig. 3, Table 5; Appendix B.2)."""

    @property
    def recorded(self) -> dict[str, Any]:
        names = ("input_tokens", "output_tokens", "total_tokens", "warmups", "repeats")
        return self.chosen(*names) | {"num_prompts": self.number_of_prompts, "prompts": "token ids"}

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
        with sides(run) as programs:
            answers = in_turns(
                programs, job | {"input": prompt, "output": output}, self.repeats(subject.variant), self.warm_up
            )
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
            "output_tokens_per_second": prompts * output / seconds,
            "requests_per_second": prompts / seconds,
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


class ForwardTime(Point[points.ForwardTime]):
    """Every batch on one engine, each time after one to warm up (Fig. 2, right)."""

    alone = single = True

    @property
    def lengths(self) -> tuple[int, int]:
        """The largest batch, and the token sampled after it."""
        return max(self.settings.batch_tokens), 1

    @property
    def recorded(self) -> dict[str, Any]:
        return self.chosen("batch_tokens", "repeats") | {"prompts": "token ids"}

    def numbers(self, run: Run) -> dict[str, Any]:
        times, often = {BASELINE: [], OWN: []}, self.repeats(run.subject.variant)
        job = {"do": "forward", "repeats": 1, "seed": self.seed}
        with sides(run) as programs:
            for tokens in self.settings.batch_tokens:
                for side, answers in in_turns(programs, job | {"input": tokens}, often).items():
                    times[side].append([answer["seconds"][0] for answer in answers])
        return {
            "batch_tokens": self.settings.batch_tokens,
            "seconds": {name: list(map(of, times[OWN])) for name, of in (("median", statistics.median), ("min", min))},
            **samples(times, "seconds"),
            "repeats": often,
            "what": "wall time of one engine step that computes a prompt of so many tokens in one forward pass and "
            "samples one token, scheduling included",
        }

    @staticmethod
    def headline(result: dict[str, Any]) -> str:
        batches = zip(result["batch_tokens"], result["seconds"]["median"], strict=True)
        return ", ".join(f"{tokens} tokens {1000 * seconds:.1f} ms" for tokens, seconds in batches)


class Decode(Point[points.Decode]):
    """Every batch size on one engine, each once to warm up; no prompt is computed in the steps that count."""

    alone = True

    @property
    def recorded(self) -> dict[str, Any]:
        return self.chosen("input_tokens", "output_tokens", "batch_sizes", "repeats") | {"prompts": "token ids"}

    def numbers(self, run: Run) -> dict[str, Any]:
        times, steps = {BASELINE: [], OWN: []}, []
        prompt, output = self.lengths
        with sides(run) as programs:
            for batch in self.settings.batch_sizes:
                job = {"do": "decode", "batch": batch, "input": prompt, "output": output, "seed": self.seed}
                for program in programs.values():
                    program.ask(job)
                found = in_turns(programs, job, self.repeats(run.subject.variant))
                for side, answers in found.items():
                    times[side].append([1000 * answer["seconds"] / answer["steps"] for answer in answers])
                steps.append([answer["steps"] for answer in found[OWN]])
        spread = {"median": statistics.median, "min": min, "max": max}
        return {
            "batch_sizes": self.settings.batch_sizes,
            "tpot_ms": {name: list(map(of, times[OWN])) for name, of in spread.items()},
            **samples(times, "ms"),
            "steps": steps,
            "what": "wall time of an engine step that decodes one token of every request of the batch, scheduling "
            "included",
        }

    @staticmethod
    def headline(result: dict[str, Any]) -> str:
        batches = zip(result["batch_sizes"], result["tpot_ms"]["median"], strict=True)
        return ", ".join(f"batch {batch} {milliseconds:.2f} ms a token" for batch, milliseconds in batches)


class Answer(Point[points.Answer]):
    """One question as a user asks it: the answer, and the seconds until its first token and its last. Not in the paper."""

    alone = True

    @property
    def recorded(self) -> dict[str, Any]:
        names = ("input_tokens", "output_tokens", "dataset", "repeats")
        return self.chosen(*names) | {"prompts": "the longest opening of a chat"}

    def numbers(self, run: Run) -> dict[str, Any]:
        """The question, the answers by side, and the times; greedy, so every turn gives the same answer."""
        from transformers import AutoTokenizer

        if run.heldout is None:
            raise UserError(f"point {self.name!r} sends a chat, but no file with chats was given")
        longest, output = self.lengths
        chats = chat_openings(run.subject.folder, run.heldout, longest, self.seed)
        question, prompt = max(chats, key=lambda chat: len(chat[1]))
        tokenizer = AutoTokenizer.from_pretrained(run.subject.folder)
        job = {"do": "reply", "prompt": prompt, "output": output, "stop": [tokenizer.eos_token_id]}
        with sides(run) as programs:
            found = in_turns(programs, job, self.repeats(run.subject.variant), warm_up=job)
        first = {side: [1000 * answer["first_token_seconds"] for answer in answers] for side, answers in found.items()}
        whole = {side: [answer["seconds"] for answer in answers] for side, answers in found.items()}
        ids = {side: answers[-1]["tokens"] for side, answers in found.items()}
        texts = {side: tokenizer.decode(answer, skip_special_tokens=True) for side, answer in ids.items()}
        return {
            "question": question,
            "prompt_tokens": len(prompt),
            "text": texts[OWN],
            "baseline_text": texts.get(BASELINE),
            "tokens": len(ids[OWN]),
            "baseline_tokens": len(ids[BASELINE]) if BASELINE in ids else None,
            "first_token_ms": statistics.median(first[OWN]),
            "seconds": statistics.median(whole[OWN]),
            **samples(first, "ms"),
            **samples(whole, "seconds"),
            "what": "wall time from the request to the first token of the answer (ms), and to its last (seconds)",
        }

    @staticmethod
    def headline(result: dict[str, Any]) -> str:
        first, seconds = result["first_token_ms"], result["seconds"]
        return f"first token after {first:.0f} ms, {result['tokens']} tokens after {seconds:.2f} s"


class KvCapacity(Point[points.KvCapacity]):
    """KV capacity in tokens, as vLLM reports it after its own profiling: an engine is started and asked nothing."""

    @property
    def recorded(self) -> dict[str, Any]:
        return self.chosen("input_tokens", "output_tokens")

    def numbers(self, run: Run) -> dict[str, Any]:
        with sides(run) as programs:
            programs[OWN].ask({"do": "ready"})
            tokens, gib = cache_size(programs[OWN].job.text())
        if tokens is None:
            raise EngineFailure(f"vLLM did not say how many tokens its KV cache holds; what it printed is in {run.log}")
        size = run.budget.kv_cache_bytes
        if size is None and gib is not None:
            size = int(gib * GIBI)  # printed with two decimals
        return {"kv_cache_tokens": tokens, "kv_cache_bytes": size}

    @staticmethod
    def headline(result: dict[str, Any]) -> str:
        return f"{result['kv_cache_tokens']} tokens"
