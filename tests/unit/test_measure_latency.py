"""A killed latency point takes up where it was; its prompts are token ids, of real chats where asked for."""

import json
import os
from types import SimpleNamespace

import pytest
from tests.unit.measure_helpers import LLAMA, REPORT, answered, measure, point, run_of, stand_in, subject

from pipeline.measure import latency
from pipeline.measure.client import rate_result
from pipeline.measure.dummy import write_dummy
from pipeline.measure.engine import EngineFailure
from pipeline.measure.memory import Device
from pipeline.measure.prompts import chat_prompts, random_prompts
from pipeline.measure.worker import module, worker
from swiftkv.errors import UserError


@pytest.fixture
def measured(monkeypatch):
    """Replaces server and client; the rates that were really measured, in order."""
    rates = []

    def client(run, server, client, rate):
        rates.append(rate)
        return answered(rate)

    stand_in(monkeypatch, client)
    return rates


def keep_rate(model, asked, work):
    """What a measurement of 1 request a second that was killed leaves behind."""
    command = latency.KIND.command(run_of(model, asked, work))
    work.mkdir()
    same = latency.identity(model, asked) | latency.engine_of(command) | latency.sent(asked)
    kept = {"settings": same, "result": rate_result(REPORT, 1, 20)}
    (work / "rate-1.json").write_text(json.dumps(kept))


def test_a_report_becomes_numbers():
    report = REPORT | {"spec_decode_acceptance_rate": 41.0, "spec_decode_acceptance_length": 2.1}
    result = rate_result(report, 2, 20)
    assert (result["request_rate"], result["completed"], result["achieved_request_rate"]) == (2, 20, 1.9)
    assert result["ttft_ms"] == {"mean": 7.0, "median": 7.0, "p99": 7.0} and result["acceptance_length"] == 2.1
    assert result["error"] == "x"


@pytest.mark.parametrize("end", [KeyboardInterrupt, EngineFailure])
def test_finished_rates_are_not_measured_again(tmp_path, measured, monkeypatch, end):
    model, asked = subject(tmp_path / "m"), point("latency", request_rates=[1, 2, 4], seconds=10)
    client = latency.ask

    def ended(run, server, worker, rate):
        if rate == 4:
            raise end
        return client(run, server, worker, rate)

    monkeypatch.setattr(latency, "ask", ended)
    with pytest.raises(end):
        measure(model, asked, tmp_path / "work")
    # A new server's first rate is measured twice, and once for nothing.
    assert measured == [1, 1, 2] and (tmp_path / "work/vllm.log").exists()
    monkeypatch.setattr(latency, "ask", client)
    record = measure(model, asked, tmp_path / "work")
    assert measured == [1, 1, 2, 4, 4]
    assert [entry["request_rate"] for entry in record["result"]["rates"]] == [1, 2, 4]
    assert record["engine"]["kv_cache_tokens"] == 1024 and record["settings"]["prompts"] == "token ids"


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"seconds": 20}, [1, 1]),
        ({"output_tokens": 17}, [1, 1]),
        ({"enforce_eager": False}, [1, 1]),
        ({"request_rates": [1, 2]}, [2, 2]),
    ],
)
def test_rates_of_other_settings_are_measured_again(tmp_path, measured, change, again):
    model, values = subject(tmp_path / "m"), {"request_rates": [1], "seconds": 10}
    keep_rate(model, point("latency", **values), tmp_path / "work")
    measure(model, point("latency", **values | change), tmp_path / "work")
    assert measured == again


ELSEWHERE = {"installed_version": "0.33.0", "processor": "Another CPU", "devices": [Device("NVIDIA A100", 1, 1)]}


@pytest.mark.parametrize("what", [None, "weights", *ELSEWHERE])
def test_rates_of_other_weights_or_another_machine_are_measured_again(tmp_path, measured, monkeypatch, what):
    model = subject(tmp_path / "m")
    asked = point("latency", gpus=1, request_rates=[1], seconds=10)
    (tmp_path / "m/model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(latency, "devices", lambda: [Device("NVIDIA H100", 1, 1)])
    keep_rate(model, asked, tmp_path / "work")
    if what == "weights":
        (tmp_path / "m/model.safetensors").write_bytes(b"other weights")
    elif what:
        monkeypatch.setattr(latency, what, lambda *_: ELSEWHERE[what])
    measure(model, asked, tmp_path / "work")
    assert measured == ([1, 1] if what else [])


def test_costs_of_chats_are_those_of_the_requests_as_they_came(tmp_path, measured):
    asked = point("latency", request_rates=[1], seconds=1, dataset="heldout", input_tokens=4000)
    record = measure(subject(tmp_path / "m"), asked, tmp_path / "work", tmp_path / "chats.jsonl")
    other = measure(subject(tmp_path / "m"), point("latency", request_rates=[1], seconds=1), tmp_path / "again")
    # REPORT's requests have 100 input and 16 output tokens, as the other point's.
    assert record["cost"] == other["cost"] and record["settings"]["dataset"] == "heldout"


def test_a_rate_without_one_finished_request_is_a_failure(tmp_path):
    run = run_of(subject(tmp_path / "m"), point("latency", request_rates=[1], seconds=1), tmp_path)
    answer = {"completed": 0, "error": "Traceback\nConnectionError: refused"}
    client = SimpleNamespace(ask=lambda job, check: dict(answer), job=SimpleNamespace(log="LOG"))
    server = SimpleNamespace(url="URL", name="m", check=lambda: None)
    with pytest.raises(
        EngineFailure, match="not one request succeeded at 3 requests a second: ConnectionError: refused"
    ):
        latency.ask(run, server, client, 3)


def test_random_prompts_are_seeded_and_hold_no_special_tokens():
    prompts = random_prompts(3, 500, 128_256, 7)
    assert prompts == random_prompts(3, 500, 128_256, 7) != random_prompts(3, 500, 128_256, 8)
    assert [len(prompt) for prompt in prompts] == [500] * 3 and prompts[0] != prompts[1]
    assert min(map(min, prompts)) >= 1000 and max(map(max, prompts)) < 128_000  # Llama-3's special tokens begin there
    assert {token for prompt in random_prompts(1, 5000, 64, 0) for token in prompt} == set(range(16, 48))


def test_chats_are_sent_through_the_template(tmp_path):
    from transformers import AutoTokenizer

    write_dummy(LLAMA | {"vocab_size": 50_000}, None, None, tmp_path / "m")
    chats = tmp_path / "heldout.jsonl"
    lines = [
        {"id": "1", "source": "x", "messages": [{"role": "user", "content": "What is two and two?"}]},
        {"id": "2", "source": "x", "messages": [{"role": "user", "content": "word " * 300}]},
        {"id": "3", "source": "x", "messages": [{"role": "assistant", "content": "Four."}]},
    ]
    chats.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (prompt,) = chat_prompts(tmp_path / "m", chats, 100, 0)
    text = AutoTokenizer.from_pretrained(tmp_path / "m").decode(prompt)
    assert "What is two and two?" in text and text.endswith("<|im_start|>assistant\n")
    with pytest.raises(UserError, match="no chat whose opening fits into 3 tokens"):
        chat_prompts(tmp_path / "m", chats, 3, 0)


def test_chats_must_be_given(tmp_path):
    asked = point("latency", request_rates=[1], seconds=1, dataset="heldout")
    with pytest.raises(UserError, match="no file with chats"):
        measure(subject(tmp_path / "m"), asked, tmp_path / "work")


def test_a_server_that_dies_ends_the_wait_for_the_client(tmp_path):
    def check():
        raise EngineFailure("the vLLM server ended with status 1")

    with (
        worker(module("pipeline.measure.client"), tmp_path / "client.log", os.environ, "the client") as client,
        pytest.raises(EngineFailure, match="the vLLM server"),
    ):
        client.ask({"no_such": "option"}, check)
    assert client.job.returncode is not None
