"""One of two vLLM engines of which the first computes prompts and the second takes their caches over NIXL.

    python tests/serve/disaggregated.py prefill|decode case.json folder

The case is {"model": folder, "engine": arguments of vllm.LLM, "prompts": [[token id, ...], ...]}. The prefill engine
leaves `handles.json` in the folder and waits for `answers.json`, which the decode engine writes. That one is given other
tokens but for the last, which it runs again: what it answers can only come from the caches.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import generate  # first: it sets the environment of vLLM
from vllm import LLM, SamplingParams, TokensPrompt

SECONDS = 240


def wait_for(file: Path) -> None:
    """Until the other process has written it."""
    end = time.monotonic() + SECONDS
    while not file.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{file} was not written in {SECONDS} s")
        time.sleep(0.1)


def write(file: Path, value: object) -> None:
    """All of it at once, as the other process may look at any time."""
    file.with_suffix(".new").write_text(json.dumps(value))
    file.with_suffix(".new").rename(file)


def main(role: str, case: dict, folder: Path) -> None:
    """Run one of the engines."""
    transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
    engine = generate.DEFAULTS | case["engine"] | {"kv_transfer_config": transfer}
    llm = LLM(case["model"], **engine)
    greedy = dict(temperature=0, ignore_eos=True, logprobs=0)
    if role == "prefill":
        ask = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}
        prompts = [TokensPrompt(prompt_token_ids=ids) for ids in case["prompts"]]
        outputs = llm.generate(prompts, SamplingParams(max_tokens=1, extra_args=ask, **greedy), use_tqdm=False)
        write(folder / "handles.json", [output.kv_transfer_params for output in outputs])
        wait_for(folder / "answers.json")
        return
    wait_for(folder / "handles.json")
    handles = json.loads((folder / "handles.json").read_text())
    settings = [
        SamplingParams(max_tokens=12, extra_args={"kv_transfer_params": handle}, **greedy) for handle in handles
    ]
    others = [[token ^ 1 for token in ids[:-1]] + ids[-1:] for ids in case["prompts"]]  # alike where the prompts are
    outputs = llm.generate([TokensPrompt(prompt_token_ids=ids) for ids in others], settings, use_tqdm=False)
    answer = {
        "tokens": [list(o.outputs[0].token_ids) for o in outputs],
        "logprobs": [
            [step[t].logprob for t, step in zip(o.outputs[0].token_ids, o.outputs[0].logprobs, strict=True)]
            for o in outputs
        ],
    }
    write(folder / "answers.json", answer)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3]))
