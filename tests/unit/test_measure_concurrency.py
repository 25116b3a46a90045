"""Closed loops: every number of requests at once on one server, each kept, and what the client is asked."""

import math

import pytest

from swiftkv.measure import latency
from swiftkv.measure.engine import EngineFailure
from swiftkv.measure.run import headline
from tests.unit.measure_helpers import answered, measure, point, stand_in, subject


def asked(**changes):
    """A point of three sizes, not in order."""
    return point("concurrency", **{"concurrencies": [8, 1, 4], "requests_each": 3} | changes)


@pytest.fixture
def sent(monkeypatch):
    """Replaces server and client; what was really measured, in order."""
    jobs = []

    def ask(run, server, client, rate, **job):
        jobs.append((rate, job["concurrency"], job["requests"]))
        found = answered(rate, total_token_throughput=100.0 * job["concurrency"])
        return {"concurrency": job["concurrency"]} | {
            key: value for key, value in found.items() if key != "request_rate"
        }

    stand_in(monkeypatch, "ask", ask)
    return jobs


def test_all_sizes_are_measured_in_ascending_order_after_one_to_warm_up(tmp_path, sent):
    record = measure(subject(tmp_path / "m"), asked(), tmp_path / "work")
    assert sent == [(math.inf, 1, 3), (math.inf, 1, 3), (math.inf, 4, 12), (math.inf, 8, 24)]
    found = record["result"]["concurrencies"]
    assert [each["concurrency"] for each in found] == [1, 4, 8] and found[2]["itl_ms"]["p99"] == 7.0
    assert record["settings"]["concurrencies"] == [1, 4, 8] and record["settings"]["requests_each"] == 3
    assert headline(record) == "800 tokens/s with 8 requests at once"


def test_a_killed_measurement_goes_on_and_other_requests_begin_anew(tmp_path, sent, monkeypatch):
    model, ask = subject(tmp_path / "m"), latency.ask

    def killed(run, server, client, rate, **job):
        if job["concurrency"] == 8:
            raise KeyboardInterrupt
        return ask(run, server, client, rate, **job)

    monkeypatch.setattr(latency, "ask", killed)
    with pytest.raises(KeyboardInterrupt):
        measure(model, asked(), tmp_path / "work")
    monkeypatch.setattr(latency, "ask", ask)
    measure(model, asked(), tmp_path / "work")
    assert [count for _, count, _ in sent] == [1, 1, 4, 8, 8]  # warmed up anew
    measure(model, asked(requests_each=2), tmp_path / "work")
    assert [count for _, count, _ in sent[5:]] == [1, 1, 4, 8]


class Client:
    """Answers every job as `client.measure_rate` would if no request succeeded."""

    job = type("Job", (), {"log": "client.log"})

    def ask(self, job, check):
        self.asked = job
        return {"completed": 0, "error": "Traceback\nConnectionError: gone"}


def test_no_success_names_how_many_were_sent_at_once(tmp_path):
    server = type("Server", (), {"url": "http://x", "name": "x", "check": lambda self: None})()
    run = type("Run", (), {"subject": subject(tmp_path / "m"), "point": asked()})
    with pytest.raises(EngineFailure, match="not one request succeeded at 8 requests at once: ConnectionError: gone"):
        latency.ask(run, server, client := Client(), math.inf, concurrency=8, requests=24, prompts={})
    assert (client.asked["requests"], client.asked["rate"]) == (24, math.inf)
