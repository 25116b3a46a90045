"""A started program and all it starts are gone when the block is left, and a worker answers until it fails."""

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.programs import alive

from pipeline.engines.log import EngineFailure
from pipeline.engines.worker import serving, worker

# A stand-in for `vllm serve`: an engine process that ignores a polite end, and a server that says it is well.
FAKE = """
import argparse, http.server, os, signal, subprocess, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int); parser.add_argument("--host"); parser.add_argument("--served-model-name")
parser.add_argument("--die"); parser.add_argument("--hang", action="store_true")
parser.add_argument("--orphan", action="store_true")
o = parser.parse_args()
assert o.host == "127.0.0.1"
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
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
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
    file = tmp_path / "fake_server.py"
    file.write_text(FAKE)
    return lambda *options: [sys.executable, str(file), *options]


def pids(log):
    """Engine and server, once the stand-in has said them."""
    for _ in range(200):
        words = log.read_text().split() if log.exists() else []
        if len(words) >= 4:
            return [int(words[1]), int(words[3])]
        time.sleep(0.05)
    raise AssertionError("the stand-in did not start")


@pytest.mark.parametrize("options", [(), ("--orphan",)])
def test_a_server_is_gone_with_its_engine_when_the_block_is_left(fake, tmp_path, options):
    log = tmp_path / "log"
    with pytest.raises(RuntimeError, match="measuring failed"), serving(fake(*options), "m", log, timeout=20):
        numbers = pids(log)
        assert all(map(alive, numbers))
        raise RuntimeError("measuring failed")
    assert not any(map(alive, numbers))  # at once: leaving the block waits for it


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--hang"], "did not answer within 1 seconds"),
        (["--die", "ERROR x.py:1] ValueError: no such option"], "status 3: ValueError: no such option"),
    ],
)
def test_a_server_that_does_not_come_up_says_why(fake, tmp_path, options, sentence):
    with (
        pytest.raises(EngineFailure, match=sentence) as error,
        serving(fake(*options), "m", tmp_path / "log", timeout=1),
    ):
        pass
    assert "\n" not in str(error.value)
    assert not any(map(alive, pids(tmp_path / "log")))


PROGRAM = """
import pathlib, sys, time
from pipeline.engines.worker import serving
with serving(sys.argv[2:], "m", pathlib.Path(sys.argv[1]), timeout=20):
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_killed_program_leaves_nothing_behind(fake, tmp_path, number):
    log = tmp_path / "log"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(log), *fake("--orphan")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Tests run in the background of a script inherit an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert program.stdout.readline() == "up\n"
    numbers = pids(log)
    os.killpg(program.pid, number)
    assert program.wait(30) != 0
    end = time.monotonic() + 30
    while any(map(alive, numbers)):
        assert time.monotonic() < end
        time.sleep(0.05)


ECHO = """
import subprocess, sys
from pipeline.engines.worker import answer
ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", ignore])
answer(sys.argv[1], lambda message: {"child": child.pid, "answer": 1 / message})
"""


def start(program, tmp_path):
    return worker([sys.executable, "-c", program], tmp_path / "log", os.environ, "the worker")


def test_a_worker_answers_until_a_job_fails_and_leaves_nothing_behind(tmp_path):
    with start(ECHO, tmp_path) as divide:
        found = divide.ask(2)
        assert found["answer"] == 0.5 and alive(found["child"])
        with pytest.raises(EngineFailure, match="the worker ended with status 1: ZeroDivisionError: division by zero"):
            divide.ask(0)
    assert not alive(found["child"])
