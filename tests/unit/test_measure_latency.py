"""A killed latency point takes up where it was; its prompts are real chats where asked for."""

import contextlib
import dataclasses
import json

import pytest

from swiftkv.errors import UserError
from swiftkv.measure import latency
from swiftkv.measure.client import bench_client
from swiftkv.measure.dummy import write_dummy
from swiftkv.measure.engine import EngineFailure
from tests.unit.measure_helpers import LLAMA, point, subject

REPORT = {
    "duration": 10.5, "completed": 20, "failed": 0, "total_input_tokens": 2000, "total_output_tokens": 320,
    "request_throughput": 1.9, "output_throughput": 30.4, "total_token_throughput": 220.9,
    **{f"{statistic}_{name}_ms": 7.0 for statistic in ("mean", "median", "p99") for name in ("ttft", "tpot", "itl", "e2el")},
}  # fmt: skip


@pytest.fixture
def measured(monkeypatch):
    """Replaces server and client; the rates that were really measured, in order."""
    rates = []

    @contextlib.contextmanager
    def server(command, name, log, environment, timeout):
        log.write_text("CPU KV cache size: 1,024 tokens,\n")
        yield None

    def client(server, client, subject, point, rate, work, chats):
        rates.append(rate)
        return latency.rate_result(REPORT, rate, 20)

    monkeypatch.setattr(latency, "serving", server)
    monkeypatch.setattr(latency, "bench_client", lambda log: contextlib.nullcontext())
    monkeypatch.setattr(latency, "measure_rate", client)
    return rates


def test_a_report_becomes_numbers():
    result = latency.rate_result(
        REPORT | {"spec_decode_acceptance_rate": 41.0, "spec_decode_acceptance_length": 2.1}, 2, 20
    )
    assert (result["request_rate"], result["completed"], result["achieved_request_rate"]) == (2, 20, 1.9)
    assert result["ttft_ms"] == {"mean": 7.0, "median": 7.0, "p99": 7.0} and result["acceptance_length"] == 2.1


def test_finished_rates_are_not_measured_again(tmp_path, measured, monkeypatch):
    model, asked = subject(tmp_path / "m"), point("latency", request_rates=[1, 2, 4], seconds=10)
    client = latency.measure_rate

    def killed(*arguments):
        if arguments[4] == 4:
            raise KeyboardInterrupt
        return client(*arguments)

    monkeypatch.setattr(latency, "measure_rate", killed)
    with pytest.raises(KeyboardInterrupt):
        latency.measure_latency(model, asked, tmp_path / "work")
    assert measured == [1, 2]
    monkeypatch.setattr(latency, "measure_rate", client)
    record = latency.measure_latency(model, asked, tmp_path / "work")
    assert measured == [1, 2, 4]
    assert [entry["request_rate"] for entry in record["result"]["rates"]] == [1, 2, 4]
    assert record["engine"]["kv_cache_tokens"] == 1024
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("change", [{"seconds": 20}, {"output_tokens": 17}, {"engine": {"enforce_eager": False}}])
def test_rates_of_other_settings_are_measured_again(tmp_path, measured, monkeypatch, change):
    model = subject(tmp_path / "m")
    asked = point("latency", **{"request_rates": [1], "seconds": 10})
    same = latency._identity(model, asked, latency.serve_command(model, asked))
    (tmp_path / "work").mkdir()
    kept = {"settings": same, "result": latency.rate_result(REPORT, 1, 20)}
    (tmp_path / "work/rate-1.json").write_text(json.dumps(kept))
    latency.measure_latency(
        model, point("latency", **{"request_rates": [1], "seconds": 10} | change), tmp_path / "work"
    )
    assert measured == [1]


def test_more_rates_do_not_make_the_finished_ones_void(tmp_path, measured):
    model, asked = subject(tmp_path / "m"), point("latency", request_rates=[1], seconds=10)
    same = latency._identity(model, asked, latency.serve_command(model, asked))
    (tmp_path / "work").mkdir()
    kept = {"settings": same, "result": latency.rate_result(REPORT, 1, 20)}
    (tmp_path / "work/rate-1.json").write_text(json.dumps(kept))
    latency.measure_latency(model, point("latency", request_rates=[1, 2], seconds=10), tmp_path / "work")
    assert measured == [2]


def test_a_failure_keeps_the_finished_rates(tmp_path, measured, monkeypatch):
    model, asked = subject(tmp_path / "m"), point("latency", request_rates=[1, 2], seconds=10)
    client = latency.measure_rate

    def fails(*arguments):
        if arguments[4] == 2:
            raise EngineFailure("the vLLM server ended with status 1")
        return client(*arguments)

    monkeypatch.setattr(latency, "measure_rate", fails)
    with pytest.raises(EngineFailure):
        latency.measure_latency(model, asked, tmp_path / "work")
    assert (tmp_path / "work/rate-1.json").exists() and (tmp_path / "work/vllm.log").exists()


def test_chats_are_sent_through_the_template(tmp_path):
    write_dummy(LLAMA | {"vocab_size": 50_000}, None, None, tmp_path / "m")
    model = dataclasses.replace(subject(tmp_path / "other"), folder=tmp_path / "m")
    chats = tmp_path / "heldout.jsonl"
    lines = [
        {"id": "1", "source": "x", "messages": [{"role": "user", "content": "What is two and two?"}]},
        {"id": "2", "source": "x", "messages": [{"role": "user", "content": "word " * 300}]},
        {"id": "3", "source": "x", "messages": [{"role": "assistant", "content": "Four."}]},
    ]
    chats.write_text("".join(json.dumps(line) + "\n" for line in lines))
    latency.write_prompts(model, point("latency", input_tokens=100), chats, tmp_path / "prompts.jsonl")
    (prompt,) = [json.loads(line)["prompt"] for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert "What is two and two?" in prompt and prompt.endswith("<|im_start|>assistant\n")
    with pytest.raises(UserError, match="no chat whose opening fits into 3 tokens"):
        latency.write_prompts(model, point("latency", input_tokens=3), chats, tmp_path / "prompts.jsonl")


def test_chats_must_be_given(tmp_path):
    asked = point("latency", request_rates=[1], seconds=1, dataset="packaged")
    with pytest.raises(UserError, match="no file with chats"):
        latency.measure_latency(subject(tmp_path / "m"), asked, tmp_path / "work")


def test_a_client_that_ends_is_a_failure_with_its_words(tmp_path):
    with bench_client(tmp_path / "client.log") as client, pytest.raises(EngineFailure) as failed:
        client.run(["--no-such-option"], lambda: None)
    assert "vllm bench serve" in str(failed.value) and "no-such-option" in (tmp_path / "client.log").read_text()


def test_a_server_that_dies_ends_the_wait_for_the_client(tmp_path):
    def check():
        raise EngineFailure("the vLLM server ended with status 1")

    with bench_client(tmp_path / "client.log") as client, pytest.raises(EngineFailure, match="the vLLM server"):
        client.run(["--no-such-option"], check)
    assert client._job.returncode is not None
