"""A started program and all it starts are gone when the block is left; workers answer, and count what they say they count."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.measure_helpers import alive

from pipeline.measure import engine_program
from pipeline.measure.engine import EngineFailure, OutOfMemory
from pipeline.measure.process import free_port, running
from pipeline.measure.worker import served_names, serving, worker

# A stand-in for `vllm serve`: an engine process that ignores a polite end, and a server that lists a model.
FAKE = """
import argparse, http.server, json, os, signal, subprocess, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int); parser.add_argument("--host"); parser.add_argument("--served-model-name")
parser.add_argument("--name"); parser.add_argument("--die"); parser.add_argument("--hang", action="store_true")
parser.add_argument("--orphan", action="store_true")
o = parser.parse_args()
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
engine = subprocess.Popen([sys.executable, "-c", code])
print("engine", engine.pid, "server", os.getpid(), flush=True)
if o.die:
    print(o.die, flush=True)
    os._exit(3)
if o.hang:
    time.sleep(600)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"data": [{"id": o.name or o.served_model_name}]}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
def leave(*_):
    if not o.orphan:
        engine.kill(); engine.wait()
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
http.server.HTTPServer(("127.0.0.1", o.port), Handler).serve_forever()
"""


@pytest.fixture
def fake(tmp_path):
    """Command line of the stand-in, with options."""
    file = tmp_path / "fake_server.py"
    file.write_text(FAKE)
    return lambda *options: [sys.executable, str(file), *options]


def pids(log: Path) -> list[int]:
    """Engine and server, once the stand-in has said them."""
    for _ in range(200):
        words = log.read_text().split() if log.exists() else []
        if len(words) >= 4:
            return [int(words[1]), int(words[3])]
        time.sleep(0.05)
    raise AssertionError("the stand-in did not start")


def gone(numbers, timeout=20.0):
    """Whether none of the processes runs any more within the time."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if not any(alive(number) for number in numbers):
            return True
        time.sleep(0.05)
    return False


def test_a_server_serves_and_then_is_gone(fake, tmp_path):
    log = tmp_path / "log"
    with serving(fake(), "a-model", log, timeout=20) as server:
        assert served_names(server.url) == ["a-model"]
        numbers = pids(log)
        assert all(map(alive, numbers))
        port = int(server.url.rsplit(":", 1)[1])
    assert not any(map(alive, numbers))  # at once: leaving the block waits for it
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


def test_an_exception_leaves_nothing_behind(fake, tmp_path):
    with pytest.raises(RuntimeError, match="measuring failed"), serving(fake(), "m", tmp_path / "log", timeout=20):
        numbers = pids(tmp_path / "log")
        raise RuntimeError("measuring failed")
    assert not any(map(alive, numbers))


def test_an_engine_that_outlives_its_server_is_ended_too(fake, tmp_path):
    with serving(fake("--orphan"), "m", tmp_path / "log", timeout=20):
        numbers = pids(tmp_path / "log")
    assert not any(map(alive, numbers))


def test_another_model_on_the_port_is_refused(fake, tmp_path):
    command, log = fake("--name", "other"), tmp_path / "log"
    with pytest.raises(EngineFailure, match="serves other where 'm' was started"), serving(command, "m", log):
        pass
    assert gone(pids(tmp_path / "log"))


def test_a_server_that_does_not_answer_in_time_is_ended(fake, tmp_path):
    command, log = fake("--hang"), tmp_path / "log"
    with pytest.raises(EngineFailure, match="did not answer within 1 seconds"), serving(command, "m", log, timeout=1):
        pass
    assert gone(pids(tmp_path / "log"))


@pytest.mark.parametrize(
    ("line", "kind", "sentence"),
    [
        ("ERROR x.py:1] ValueError: no such option", EngineFailure, "ended with status 3: ValueError: no such option"),
        ("ValueError: No available memory for the cache blocks. Try", OutOfMemory, "not enough memory"),
    ],
)
def test_a_server_that_dies_says_why(fake, tmp_path, line, kind, sentence):
    with pytest.raises(kind, match=sentence) as error, serving(fake("--die", line), "m", tmp_path / "log", timeout=20):
        pass
    assert "\n" not in str(error.value)
    assert gone(pids(tmp_path / "log"))


PROGRAM = """
import sys, time
from pipeline.measure.worker import serving
with serving(sys.argv[2:], "m", sys.argv[1], timeout=20):
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "group"),
    [(signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGKILL, False), (signal.SIGKILL, True)],
)
def test_a_killed_program_leaves_nothing_behind(fake, tmp_path, number, group):
    log = tmp_path / "log"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(log), *fake()],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Tests run in the background of a script inherit an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert program.stdout.readline() == "up\n"
    numbers = pids(log)
    (os.killpg if group else os.kill)(program.pid, number)
    assert program.wait(30) != 0
    if number != signal.SIGKILL:
        assert not any(map(alive, numbers))  # it ended after the server
    assert gone(numbers)


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        (["/no/such/program"], 127, "/no/such/program cannot be started"),
        ([sys.executable, "-c", "import os, sys; print(os.environ['WORD']); sys.exit(5)"], 5, "hello\n"),
        ([sys.executable, "-c", "import os; os.abort()"], 128 + signal.SIGABRT, ""),
    ],
)
def test_the_exit_status_and_output_are_the_command_s(tmp_path, command, status, text):
    with running(command, tmp_path / "log", os.environ | {"WORD": "hello"}) as job:
        assert job.wait(20) == status
    assert text in job.text()


def test_ports_are_free():
    port = free_port()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
    assert served_names(f"http://127.0.0.1:{port}") is None


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
