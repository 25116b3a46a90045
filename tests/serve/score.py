"""Texts of lm-eval's vLLM back end, in a process of its own; `test_scores.py` compares them.

    python tests/serve/score.py job.json answers.json

A job has the arguments of `ServedLM` and requests [[prompt, generation settings], ...].
"""

import sys
from pathlib import Path

from lm_eval.api.instance import Instance

from pipeline.quality.served_program import ServedLM
from swiftkv.io import read_json, write_json

if __name__ == "__main__":
    job = read_json(sys.argv[1])
    lm = ServedLM(Path(job["folder"]), Path(job["folder"]), job["engine"])
    requests = [
        Instance("generate_until", {}, tuple(request), number) for number, request in enumerate(job["requests"])
    ]
    answers = {"texts": lm.generate_until(requests, disable_tqdm=True)}
    answers["fast_prefill"] = lm.model.llm_engine.vllm_config.cache_config.kv_sharing_fast_prefill
    lm.tokenizer.chat_template += "{{ strftime_now('%d %b %Y') }}"  # as Llama-3.2's does
    answers["templated"] = lm.apply_chat_template([{"role": "user", "content": "Hello"}])
    write_json(sys.argv[2], answers)
