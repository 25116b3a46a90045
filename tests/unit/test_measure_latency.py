"""Rates of a latency point: kept when it is ended, sent as token ids, and the search for the highest that is sustained."""

import json
import os
import sys
from types import SimpleNamespace

import pytest
from tests.unit.measure_helpers import LLAMA, REPORT, answered, measure, point, run_of, stand_in, subject, write_dummy

from pipeline.measure import latency
from pipeline.measure.client import chat_prompts, measure_rate, random_prompts, rate_result
from pipeline.measure.engine import EngineFailure
from pipeline.measure.latency import boundary, search, sustained
from pipeline.measure.worker import module, worker
from swiftkv.errors import UserError


@pytest.fixture
def measured(monkeypatch):
    """Replaces server and client; the rates that were really measured, in order."""
    rates = []

    def client(run, server, client, rate):
        rates.append(rate)
        return answered(rate, total_input_tokens=2000 * rate)

    stand_in(monkeypatch, client)
    return rates


def test_requests_of_a_rate():
    asked = point("latency", request_rates=[0.5], seconds=300, min_requests=200)
    assert (asked.number_of_requests(0.5), asked.number_of_requests(2)) == (200, 600)


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
    assert measured == [1, 1, 2]
    monkeypatch.setattr(latency, "ask", client)
    record = measure(model, asked, tmp_path / "work")
    assert measured == [1, 1, 2, 4, 4]
    assert [entry["request_rate"] for entry in record["result"]["rates"]] == [1, 2, 4]
    assert record["engine"]["kv_cache_tokens"] == 1024 and record["settings"]["prompts"] == "token ids"


def test_costs_of_chats_are_those_of_the_requests_as_they_came(tmp_path, measured):
    asked = point("latency", request_rates=[2, 1], seconds=1, dataset="heldout", input_tokens=4000)
    record = measure(subject(tmp_path / "m"), asked, tmp_path / "work", tmp_path / "chats.jsonl")
    other = measure(subject(tmp_path / "m"), point("latency", request_rates=[1], seconds=1), tmp_path / "again")
    # Those of the lowest rate have 100 input and 16 output tokens, as the other point's.
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


def test_chats_are_sent_through_the_template(tmp_path, monkeypatch):
    from transformers import AutoTokenizer

    write_dummy(LLAMA | {"vocab_size": 50_000}, None, tmp_path / "m")
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

    sent = []

    async def benchmark(**asked):
        sent.append((asked["ignore_eos"], asked["input_requests"]))
        return REPORT

    kinds = SimpleNamespace(GENERATION="generation")
    monkeypatch.setitem(sys.modules, "vllm.benchmarks.serve", SimpleNamespace(TaskType=kinds, benchmark=benchmark))
    monkeypatch.setitem(sys.modules, "vllm.benchmarks.datasets", SimpleNamespace(SampleRequest=SimpleNamespace))
    lengths = {"input_tokens": 100, "output_tokens": 4}
    for prompts in ({"kind": "random", "vocabulary": 512}, {"kind": "chats", "file": chats}):
        server = {"url": "http://here", "name": "m", "folder": tmp_path / "m"}
        measure_rate(**server, prompts=prompts | lengths, requests=2, rate=1, seed=0)
    (forced, random), (free, same) = sent
    assert forced and [request.prompt_len for request in random] == [100, 100]
    assert not free and [request.prompt for request in same] == [prompt, prompt]  # chats end where the model ends them


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


def queue(capacity, service=0.1, window=300.0, asked=None):
    """Measures a server that finishes `capacity` requests a second and takes `service` seconds for one alone."""

    def measure(rate):
        if asked is not None:
            asked.append(rate)
        load = rate / capacity
        requests = round(rate * window)
        if load < 1:
            wait, seconds = service * load / (2 * (1 - load)), window + service
        else:
            seconds = requests / capacity + service
            wait = (seconds - window) / 2
        return {
            "request_rate": rate,
            "requests": requests,
            "completed": requests,
            "failed": 0,
            "seconds": seconds,
            "ttft_ms": {"median": 1000 * (service + wait)},
            "e2e_ms": {"mean": 1000 * (2 * service + wait)},
        }

    return measure


@pytest.mark.parametrize("capacity", [1.7, 3.0, 9.5])
def test_the_boundary_is_bracketed_below_the_capacity(capacity):
    result = search([0.5, 1, 2, 4, 8, 16], queue(capacity), steps=6)
    low, high = result["highest_sustained_rate"], result["lowest_unsustained_rate"]
    assert 0.8 * capacity < low < high < 1.05 * capacity
    assert high - low <= 8 / 2**6
    rates = [entry["request_rate"] for entry in result["rates"]]
    assert rates == sorted(rates)
    assert [entry["sustained"] for entry in result["rates"]] == [rate <= low for rate in rates]


def test_rates_far_above_the_boundary_are_left_out():
    asked = []
    search([16, 8, 4, 2, 1, 0.5], queue(1.5, asked=asked), steps=0)
    assert asked == [0.5, 1, 2, 4]  # ascending, and two unsustained ones are enough


def test_all_sustained_has_no_upper_end():
    result = search([1, 2], queue(100), steps=3)
    assert (result["highest_sustained_rate"], result["lowest_unsustained_rate"]) == (2, None)
    assert len(result["rates"]) == 2


def test_a_server_that_does_not_keep_up_at_all():
    result = search([4, 8], queue(1), steps=3)
    assert (result["highest_sustained_rate"], result["lowest_unsustained_rate"]) == (None, 4)


def test_a_failed_request_is_not_sustained():
    measure = queue(10)
    lowest = measure(1.0)
    assert sustained(measure(2.0), lowest)
    assert not sustained(measure(2.0) | {"failed": 1}, lowest)
    assert not sustained(measure(2.0) | {"completed": 0}, lowest)


def test_a_short_measurement_is_not_held_against_the_last_request():
    # 5 requests arrive within 5 s, the last one takes 1 s: 5 / 6 of the asked rate, and nothing waited.
    slow = {"request_rate": 1.0, "completed": 5, "failed": 0, "seconds": 6.0,
            "ttft_ms": {"median": 500.0}, "e2e_ms": {"mean": 1000.0}}  # fmt: skip
    assert sustained(slow, slow)
    assert not sustained(slow | {"seconds": 7.0}, slow)


def test_late_first_tokens_are_not_sustained():
    fast = {"request_rate": 1.0, "completed": 300, "failed": 0, "seconds": 300.0,
            "ttft_ms": {"median": 100.0}, "e2e_ms": {"mean": 200.0}}  # fmt: skip
    assert sustained(fast | {"ttft_ms": {"median": 500.0}}, fast)
    assert not sustained(fast | {"ttft_ms": {"median": 501.0}}, fast)


def test_an_unsustained_rate_ends_what_counts_as_sustained():
    entries = [{"request_rate": rate, "sustained": good} for rate, good in [(1, True), (4, True), (2, False)]]
    assert boundary(entries) == (1, 2)
