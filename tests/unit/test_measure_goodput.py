"""Goodput by workload: rates rise until it falls, on one server, and a killed measurement goes on where it was."""

from dataclasses import replace

import pytest

from swiftkv.errors import UserError
from swiftkv.measure import goodput, latency
from swiftkv.measure.rates import rising
from swiftkv.records import write_json
from tests.unit.measure_helpers import answered, measure, point, run_of, stand_in, subject

LIMITS = {"ttft": 500, "tpot": 50}
SOURCE = {"kind": "drawn", "id": "stated statistics", "requests": 90, "chunk_tokens": 16, "mean_input_tokens": 120.4,
          "mean_output_tokens": 9.8, "repeated": 0.5}  # fmt: skip


WORKLOAD = {"title": "Chat", "longest": {"input_tokens": 300, "output_tokens": 40}, "goodput": LIMITS}
WORKLOADS = {
    "chat": WORKLOAD | {"request_rates": [1, 2, 4]},
    "agent": WORKLOAD | {"request_rates": [3], "longest": {"input_tokens": 2000, "output_tokens": 20}},
}


def asked(**changes):
    """A point with two workloads."""
    return point("goodput", **{"workloads": WORKLOADS, "seconds": 10, "prefix_caching": True} | changes)


@pytest.fixture
def folders(tmp_path):
    for name in ("chat", "agent"):
        write_json(tmp_path / "workloads" / name / "source.json", SOURCE)
    return [tmp_path / "workloads" / name for name in ("chat", "agent")]


@pytest.fixture
def sent(monkeypatch):
    """Replaces server and client; (workload, rate, limits) of what was really measured, in order."""
    jobs = []

    def ask(run, server, client, rate, **job):
        jobs.append((job["prompts"]["file"].split("/")[-2], rate, job["goodput"]))
        return answered(rate, request_goodput={1: 0.8, 2: 1.6, 4: 1.2, 3: 2.4}[rate])

    stand_in(monkeypatch, ask)
    return jobs


def test_every_workload_has_its_highest_goodput(tmp_path, folders, sent):
    record = measure(subject(tmp_path / "m"), asked(), tmp_path / "work", None, folders)
    # The very first is measured once for nothing.
    assert sent == [
        ("chat", 1, LIMITS),
        ("chat", 1, LIMITS),
        ("chat", 2, LIMITS),
        ("chat", 4, LIMITS),
        ("agent", 3, LIMITS),
    ]
    chat, agent = (record["result"]["workloads"][name] for name in ("chat", "agent"))
    assert (chat["goodput"], chat["request_rate"], chat["bounded"]) == (1.6, 2, True)
    assert (agent["goodput"], agent["bounded"]) == (2.4, False)
    assert chat["rates"][1]["good"] == round(1.6 * 10.5) and chat["source"] == SOURCE
    assert record["settings"]["prefix_caching"] is True and record["settings"]["workloads"]["chat"]["goodput"] == LIMITS
    command = record["settings"]["command"]
    # 2,000 input and 40 output tokens, 64 to spare, rounded up to 128
    assert "--enable-prefix-caching" in command and command[command.index("--max-model-len") + 1] == "2176"
    # The costs are those of the mean request.
    other = measure(
        subject(tmp_path / "m"), asked(workloads={"agent": WORKLOADS["agent"]}), tmp_path / "w2", None, folders
    )
    assert record["cost"] == other["cost"]


def test_a_killed_measurement_goes_on_and_other_limits_begin_anew(tmp_path, folders, sent, monkeypatch):
    model, ask = subject(tmp_path / "m"), latency.ask

    def killed(run, server, client, rate, **job):
        if rate == 3:
            raise KeyboardInterrupt
        return ask(run, server, client, rate, **job)

    monkeypatch.setattr(latency, "ask", killed)
    with pytest.raises(KeyboardInterrupt):
        measure(model, asked(), tmp_path / "work", None, folders)
    monkeypatch.setattr(latency, "ask", ask)
    measure(model, asked(), tmp_path / "work", None, folders)
    assert [rate for _, rate, _ in sent] == [1, 1, 2, 4, 3, 3]  # warmed up anew
    workloads = WORKLOADS | {"chat": WORKLOADS["chat"] | {"goodput": {"ttft": 100}}}
    measure(model, asked(workloads=workloads), tmp_path / "work", None, folders)
    assert [(name, rate) for name, rate, _ in sent[6:]] == [("chat", 1), ("chat", 1), ("chat", 2), ("chat", 4)]


def test_prefix_caching_is_off_unless_asked_for(tmp_path):
    command = goodput.KIND.command(run_of(subject(tmp_path / "m"), asked(prefix_caching=False), tmp_path))
    assert "--no-enable-prefix-caching" in command and "--enable-prefix-caching" not in command


def test_too_few_requests_are_refused_before_a_server_starts(tmp_path, folders, sent):
    with pytest.raises(UserError, match="'chat' has 90 requests, but 4 a second at point 'a-point' take 100"):
        measure(subject(tmp_path / "m"), asked(seconds=25), tmp_path / "work", None, folders)
    with pytest.raises(UserError, match="no folder of its requests was given"):
        measure(subject(tmp_path / "m"), asked(), tmp_path / "work", None, folders[:1])
    assert sent == []


def test_sides_take_turns_at_every_rate_until_their_own_goodput_falls(tmp_path, folders, monkeypatch):
    asked_for, good = [], {"baseline": {1: 0.8, 2: 0.4}, "own": {1: 0.8, 2: 1.6, 4: 0.8}}

    def ask(run, server, client, rate, *, seed, **job):
        asked_for.append((server.name, rate, seed))
        side = "baseline" if server.name == "tiny-baseline" else "own"
        # The second turn comes to half as much, in twice the time.
        return answered(rate, request_goodput=good[side][rate] / (1 + seed), duration=10.0 * (1 + seed))

    stand_in(monkeypatch, ask)
    base = subject(tmp_path / "m")
    one = {"chat": WORKLOADS["chat"]}
    both = replace(asked(workloads=one, repeats=2), in_turns=True)
    variant = replace(base, variant="other", baseline=base)
    record = measure(variant, both, tmp_path / "work", None, folders)
    names = {"B": "tiny-baseline", "A": "tiny-other"}
    first = [("B", 1, 0), ("B", 1, 0), ("A", 1, 0), ("A", 1, 0), ("A", 1, 1), ("B", 1, 1)]  # each warmed up
    second = [("B", 2, 0), ("A", 2, 0), ("A", 2, 1), ("B", 2, 1), ("A", 4, 0), ("A", 4, 1)]
    assert asked_for == [(names[side], rate, seed) for side, rate, seed in first + second]
    chat = record["result"]["workloads"]["chat"]
    assert (chat["request_rate"], chat["bounded"], chat["baseline"]["request_rate"]) == (2, True, 1)
    best = chat["rates"][1]
    assert best["goodputs"] == [1.6, 0.8] and best["seconds"] == 30 and best["requests"] == 40
    assert best["goodput"] == chat["goodput"] == pytest.approx(32 / 30)  # 16 good ones in 10 s, and 16 in 20
    assert record["settings"]["in_turns"] is True


def test_rates_rise_until_goodput_falls():
    good, tried = {1: 1.0, 2: 1.9, 4: 1.9, 8: 1.8, 16: 9.0}, []

    def served(rate, sides):
        tried.append(rate)
        return {"own": {"request_rate": rate, "goodput": good[rate]}}

    found = rising([16, 8, 4, 2, 1], served, ["own"])["own"]
    assert tried == [1, 2, 4, 8]
    assert (found["goodput"], found["request_rate"], found["bounded"], len(found["rates"])) == (1.9, 4, True, 4)
    assert rising([2, 1], served, ["own"])["own"]["bounded"] is False
