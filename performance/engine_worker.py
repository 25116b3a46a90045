"""One vLLM engine in a process of its own that does measuring jobs: `Engine` asks, this file run as a program answers.

A job is one JSON line on the program's standard input, its answer one JSON line on the standard output. All that
libraries print goes to a log file. Prompts are random token ids, outputs have a forced length, sampling is greedy.

* `{"kind": "throughput", "prompts": N, "input": S, "output": n}`: all requests at once, as `vllm bench throughput`
  does. Answer: seconds and tokens (input and output).
* `{"kind": "decode", "batch": B, "input": S, "output": n}`: the time from when all B requests have their first token
  until the first has its last. Every step in it decodes exactly B tokens. Answer: seconds and steps.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from swiftkv.measure.engine import failure


class Engine:
    """A running worker.

    Attributes:
        ready: its first answer: seconds from the process's start, seconds of vLLM's constructor, versions.
        log: the file with everything it printed.
    """

    def __init__(self, arguments: Mapping[str, Any], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as output:
            # A session of its own: its engine processes stay in its process group and are ended with it.
            self.process = subprocess.Popen(
                worker_command(arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env=dict(environment),
                start_new_session=True,
            )
        self.ready: dict[str, Any] = {}

    def ask(self, job: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """Do a job.

        Raises:
            EngineFailure: the worker died (`OutOfMemory` if that was why).
            TimeoutError: no answer within `timeout` seconds; the engine is of no further use.
        """
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        return self._answer(timeout)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the engine is ready; raises as `ask`."""
        self.ready = self._answer(timeout)

    def text(self) -> str:
        """Everything the worker printed so far."""
        return self.log.read_text(errors="replace")

    def stop(self) -> None:
        """End the worker and all it started, and wait until they are gone."""
        with contextlib.suppress(ProcessLookupError, BrokenPipeError):
            self.process.stdin.close()
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def _answer(self, timeout: float | None) -> dict[str, Any]:
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            raise TimeoutError(f"no answer within {timeout:.0f} seconds")
        line = self.process.stdout.readline()
        if not line:
            raise failure("the vLLM engine", self.process.wait(), self.text())
        return json.loads(line)


def worker_command(arguments: Mapping[str, Any]) -> list[str]:
    """The worker's command line; `arguments` are those of `vllm.LLM`."""
    return [sys.executable, __file__, json.dumps(arguments)]


@contextlib.contextmanager
def engine(
    arguments: Mapping[str, Any], environment: Mapping[str, str], log: Path, timeout: float | None = None
) -> Iterator[Engine]:
    """An engine that is ready, for as long as the block runs; raises as `Engine.ask`."""
    worker = Engine(arguments, environment, log)
    try:
        worker.wait(timeout)
        yield worker
    finally:
        worker.stop()


def tpot_ms(answer: Mapping[str, float]) -> float:
    """Milliseconds a token of a decode job's answer."""
    return 1000 * answer["seconds"] / answer["steps"]


def throughput(llm: Any, job: Mapping[str, int], source: random.Random) -> dict[str, float]:
    """All requests at once; see the module's text."""
    prompts = random_prompts(llm, job["prompts"], job["input"], source)
    parameters = forced(job["output"])
    begin = time.perf_counter()
    outputs = llm.generate(prompts, parameters, use_tqdm=False)
    seconds = time.perf_counter() - begin
    check_lengths([len(output.outputs[0].token_ids) for output in outputs], job["output"])
    return {"seconds": seconds, "tokens": job["prompts"] * (job["input"] + job["output"])}


def decode(llm: Any, job: Mapping[str, int], source: random.Random) -> dict[str, float]:
    """Steps that only decode, with the whole batch; see the module's text."""
    engine, begin, first = llm.llm_engine, None, None
    counts: dict[str, int] = {}
    for number, prompt in enumerate(random_prompts(llm, job["batch"], job["input"], source)):
        engine.add_request(f"decode-{source.getrandbits(32)}-{number}", prompt, forced(job["output"]))
    result = None
    while engine.has_unfinished_requests():
        outputs = engine.step()
        now = time.perf_counter()
        counts |= {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
        if begin is None and len(counts) == job["batch"] and min(counts.values()) > 0:
            begin, first = now, dict(counts)
        elif begin is not None and result is None and max(counts.values()) == job["output"]:
            steps = {counts[name] - first[name] for name in counts}
            # Also zero steps: the first request ended before the last one began.
            if len(steps) != 1 or steps == {0}:
                raise RuntimeError(f"no steps with the whole batch: requests advanced by {sorted(steps)} tokens")
            result = {"seconds": now - begin, "steps": steps.pop()}
    check_lengths(list(counts.values()), job["output"])
    if result is None:
        raise RuntimeError("no steps with the whole batch: ask for more output tokens")
    return result


def random_prompts(llm: Any, count: int, length: int, source: random.Random) -> list[dict[str, list[int]]]:
    """Prompts as token ids; the first thousand ids, among which special ones often are, are left out."""
    vocabulary = llm.llm_engine.model_config.get_vocab_size()
    ids = range(min(1000, vocabulary // 2), vocabulary)
    return [{"prompt_token_ids": source.choices(ids, k=length)} for _ in range(count)]


def forced(tokens: int) -> Any:
    """Greedy sampling of exactly so many tokens."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)


def check_lengths(lengths: list[int], expected: int) -> None:
    """Refuse a measurement in which a request came back shorter than asked for."""
    if set(lengths) != {expected}:
        raise RuntimeError(f"outputs of {sorted(set(lengths))} tokens where {expected} were asked for")


def main() -> None:
    begin = time.perf_counter()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    # vLLM's worker processes import this file again where they are spawned; what follows is only for the first.
    from vllm import LLM

    imported = time.perf_counter()
    llm = LLM(**json.loads(sys.argv[1]))
    ready = time.perf_counter()
    print(json.dumps({"start_seconds": ready - begin, "engine_seconds": ready - imported}), file=answers)
    source = random.Random(0)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps({"throughput": throughput, "decode": decode}[job["kind"]](llm, job, source)), file=answers)


if __name__ == "__main__":
    main()
