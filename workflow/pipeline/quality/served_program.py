"""lm-eval over vLLM in a process of its own; `python -m pipeline.quality.served_program PIPE` runs it.

Its one kind of job is a task to score, as `served.score_served` sends it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from lm_eval.models.utils import configure_pad_token, resolve_max_length
from lm_eval.models.vllm_causallms import VLLM
from transformers import AutoConfig, AutoTokenizer

import swiftkv.models  # noqa: F401  (registers the configurations with transformers)
from pipeline.engines.worker import answer
from pipeline.quality.fetch import QuestionsUnavailable
from pipeline.quality.scores import lm_eval_samples, read_off
from pipeline.quality.served import MAX_GEN_TOKS, refuse_sampling
from pipeline.quality.tasks import build_benchmark
from swiftkv.chats import TEMPLATE_ARGUMENTS
from swiftkv.cost import GIBI
from swiftkv.errors import UserError


class ServedLM(VLLM):
    """lm-eval's VLLM, made to give the answers of HFLM.

    By itself VLLM takes vLLM's choice of tokenizer and chat template (for some Mistral models not transformers'), samples
    at temperature 1 where a task does not set it and keeps special tokens in answers.

    Args:
        folder: the checkpoint.
        tokenizer: the folder of its tokenizer.
        engine: as `config.scoring_engine` gives it.
        seed: vLLM's, which greedy answers do not depend on.
    """

    def __init__(self, folder: Path, tokenizer: Path, engine: dict[str, Any], seed: int = 0) -> None:
        words = AutoTokenizer.from_pretrained(tokenizer)
        if engine["gpus"]:
            memory = {"gpu_memory_utilization": engine["gpu_memory_utilization"]}
        else:
            memory = {"kv_cache_memory_bytes": int(engine["cpu_kv_cache_gib"] * GIBI)}
        super().__init__(
            str(folder),
            tokenizer=str(tokenizer),
            tokenizer_mode="hf",
            dtype=engine["dtype"],
            tensor_parallel_size=max(1, engine["gpus"]),
            max_gen_toks=MAX_GEN_TOKS,
            # As HFLM determines it; prompts are cut on the left so that answers fit too.
            max_model_len=resolve_max_length(AutoConfig.from_pretrained(folder), words),
            max_num_batched_tokens=engine["max_num_batched_tokens"],
            max_num_seqs=engine["max_num_seqs"],
            enforce_eager=engine["enforce_eager"],
            # Few-shot prompts begin alike.
            enable_prefix_caching=True,
            enable_chunked_prefill=True,
            seed=seed,
            generation_config="vllm",  # the task's settings, not the model's
            chat_template_args=dict(TEMPLATE_ARGUMENTS),  # VLLM takes keys out of it
            **memory,
        )
        self.tokenizer = configure_pad_token(words, model_config=self._config)
        self.hf_chat_template = None  # the tokenizer's own

    def modify_gen_kwargs(self, *arguments: Any, **options: Any) -> tuple[dict[str, Any], list[str], int]:
        """Make the settings greedy."""
        settings, until, tokens = super().modify_gen_kwargs(*arguments, **options)
        return settings | {"temperature": 0.0}, until, tokens

    def _model_generate(self, *arguments: Any, **options: Any) -> list[Any]:
        """Generate as VLLM does, and decode as HFLM does."""
        outputs = super()._model_generate(*arguments, **options)
        for output in outputs:
            (completion,) = output.outputs
            completion.text = self.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        return outputs


def score(job: tuple[Any, ...]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]] | Exception:
    """Return result, settings and data of a task, or why there are none."""
    folder, tokenizer, task, seed, fetched = job
    try:
        benchmark = build_benchmark(task, seed, fetched)
        for part in benchmark.tasks.values():
            refuse_sampling(part.config.task, part.config.generation_kwargs or {})
        lm = ServedLM(folder, tokenizer, task["engine"], seed)
        return *read_off(lm_eval_samples(lm, benchmark, task), benchmark, task), benchmark.data
    except (QuestionsUnavailable, UserError) as reason:
        return reason


if __name__ == "__main__":
    answer(sys.argv[1], score)
