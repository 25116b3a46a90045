"""Workers answer, say why they died, and leave nothing behind; an engine's jobs count what they say they count."""

import os
import sys
import time
from types import SimpleNamespace

import pytest
from tests.unit.measure_helpers import alive

from pipeline.measure import engine_program
from pipeline.measure.engine import EngineFailure, OutOfMemory
from pipeline.measure.worker import worker

ECHO = """
import subprocess, sys
from pipeline.measure.worker import answer
ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", ignore])
answer(sys.argv[1], lambda message: {"child": child.pid, "message": message})
"""


def start(program, tmp_path):
    """A worker whose program is `program`."""
    return worker([sys.executable, "-c", program], tmp_path / "log", os.environ, "the worker")


def test_a_worker_answers_jobs_and_leaves_nothing_behind(tmp_path):
    with start(ECHO, tmp_path) as echo:
        assert echo.ask({"do": "decode"})["message"] == {"do": "decode"}
        child = echo.ask(1)["child"]
        assert alive(child)
    assert not alive(child)


@pytest.mark.parametrize(
    ("words", "kind", "sentence"),
    [
        ("ValueError: no such model", EngineFailure, "the worker ended with status 1: ValueError: no such model"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.", OutOfMemory, "not enough memory"),
    ],
)
def test_a_worker_that_dies_says_why(tmp_path, words, kind, sentence):
    program = f"import sys\nprint({words!r}, file=sys.stderr)\nsys.exit(1)"
    with pytest.raises(kind, match=sentence), start(program, tmp_path) as dead:
        dead.ask("anything")


def test_a_job_that_fails_ends_the_worker_with_its_words(tmp_path):
    program = "import sys\nfrom pipeline.measure.worker import answer\nanswer(sys.argv[1], lambda message: 1 / message)"
    with start(program, tmp_path) as divide:
        assert divide.ask(2) == 0.5
        with pytest.raises(EngineFailure, match="ZeroDivisionError: division by zero"):
            divide.ask(0)


class FakeEngine:
    """An engine core: `chunk` requests at a time finish their prompt in a step, then all that did gain a token a step."""

    def __init__(self, chunk, shorten=0):
        self.chunk, self.shorten, self.requests, self.steps = chunk, shorten, {}, 0
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 5000)

    def add_request(self, name, prompt, parameters):
        assert name not in self.requests and min(prompt["prompt_token_ids"]) >= 1000 and parameters.ignore_eos
        self.requests[name] = [0, parameters.max_tokens - self.shorten]

    def has_unfinished_requests(self):
        return any(done < wanted for done, wanted in self.requests.values())

    def step(self):
        time.sleep(0.001)
        self.steps += 1
        fresh = [name for name, (done, _) in self.requests.items() if done == 0][: self.chunk]
        moved = [name for name, (done, wanted) in self.requests.items() if 0 < done < wanted] + fresh
        for name in moved:
            self.requests[name][0] += 1
        return [
            SimpleNamespace(request_id=name, outputs=[SimpleNamespace(token_ids=[0] * self.requests[name][0])])
            for name in moved
        ]


@pytest.fixture
def sampling(monkeypatch):
    """Sampling parameters without vLLM."""

    def made(tokens):
        return SimpleNamespace(max_tokens=tokens, ignore_eos=True)

    monkeypatch.setattr(engine_program, "_forced", made)


@pytest.mark.parametrize(("batch", "chunk", "steps"), [(1, 1, 9), (8, 8, 9), (8, 2, 6)])
def test_decode_counts_only_steps_of_the_whole_batch(sampling, batch, chunk, steps):
    engine = FakeEngine(chunk)
    answer = engine_program.decode(
        SimpleNamespace(llm_engine=engine), {"batch": batch, "input": 4, "output": 10, "seed": 0}
    )
    # With 8 requests, 2 beginning a step, the first is at 4 tokens when the last begins.
    assert answer["steps"] == steps
    assert 0.001 * steps <= answer["seconds"] < 0.001 * engine.steps * 30
    assert not engine.has_unfinished_requests()


def test_decode_without_a_common_step_or_with_short_outputs_is_refused(sampling):
    job = {"batch": 8, "input": 4, "output": 6, "seed": 0}
    with pytest.raises(RuntimeError, match="whole batch"):
        engine_program.decode(SimpleNamespace(llm_engine=FakeEngine(1)), job)
    with pytest.raises(RuntimeError, match="were asked for"):
        engine_program.decode(SimpleNamespace(llm_engine=FakeEngine(8, shorten=1)), job)


@pytest.mark.parametrize(("made", "error"), [(5, None), (4, "outputs of \\[4\\] tokens where 5 were asked for")])
def test_throughput_counts_forced_tokens_of_prompts_made_before(sampling, made, error):
    prompts = []

    def generate(requests, parameters, use_tqdm):
        prompts.extend(requests)
        time.sleep(0.01)
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[0] * made)]) for _ in requests]

    llm = SimpleNamespace(llm_engine=FakeEngine(1), generate=generate)
    job = {"prompts": 3, "input": 50, "output": 5, "seed": 1}
    if error:
        with pytest.raises(RuntimeError, match=error):
            engine_program.throughput(llm, job)
        return
    answer = engine_program.throughput(llm, job)
    assert answer["tokens"] == 165 and 0.01 <= answer["seconds"] < 1
    assert [len(prompt["prompt_token_ids"]) for prompt in prompts] == [50] * 3
