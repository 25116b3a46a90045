"""A started program and all it starts are gone when the block is left, however it is left."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.measure_helpers import alive

from pipeline.measure.engine import EngineFailure, OutOfMemory
from pipeline.measure.process import free_port, running
from pipeline.measure.worker import served_names, serving

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


def test_a_program_that_does_not_exist_is_an_exit_status(tmp_path):
    with running(["/no/such/program"], tmp_path / "log") as job:
        assert job.wait(20) == 127
    assert "/no/such/program cannot be started" in job.text()


def test_the_exit_status_and_output_are_the_command_s(tmp_path):
    script = "import os, sys; print(os.environ['WORD']); sys.exit(5)"
    with running([sys.executable, "-c", script], tmp_path / "log", os.environ | {"WORD": "hello"}) as job:
        assert job.wait(20) == 5
    assert job.text() == "hello\n"


def test_a_crash_is_an_exit_status(tmp_path):
    with running([sys.executable, "-c", "import os; os.abort()"], tmp_path / "log") as job:
        assert job.wait(20) == 128 + signal.SIGABRT


def test_ports_are_free():
    port = free_port()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
    assert served_names(f"http://127.0.0.1:{port}") is None


def test_an_answer_that_is_no_list_of_models_is_no_server():
    import http.server
    import threading

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"status": "ok"}).encode())

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    assert served_names(f"http://127.0.0.1:{server.server_port}") is None
    server.shutdown()
