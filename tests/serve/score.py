"""Answers and a score of lm-eval's vLLM back end, in a process of its own; `test_scores.py` compares them.

    python tests/serve/score.py job.json answers.json

A job has the arguments of `ServedLM`, requests [[prompt, generation settings], ...] and a task to score.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lm_eval.api.instance import Instance

from pipeline.score.run import questions, run_benchmark
from pipeline.score.served_program import ServedLM

if __name__ == "__main__":
    job = json.loads(Path(sys.argv[1]).read_text())
    lm = ServedLM(Path(job["folder"]), Path(job["tokenizer"]), job["engine"], 0, job["penalty"])
    requests = [
        Instance("generate_until", {}, (prompt, settings), i) for i, (prompt, settings) in enumerate(job["requests"])
    ]
    texts = lm.generate_until(requests, disable_tqdm=True)
    benchmark, _ = questions(job["task"], 3)
    result, settings = run_benchmark(lm, benchmark, job["task"])
    lm.tokenizer.chat_template += "{{ strftime_now('%d %b %Y') }}"  # as Llama-3.2's does
    cache = lm.model.llm_engine.vllm_config.cache_config
    answers = {
        "texts": texts,
        "result": result,
        "settings": settings,
        "fast_prefill": cache.kv_sharing_fast_prefill,
        "templated": lm.apply_chat_template([{"role": "user", "content": "Hello"}]),
    }
    Path(sys.argv[2]).write_text(json.dumps(answers))
