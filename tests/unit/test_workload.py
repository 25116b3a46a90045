"""Requests of a workload: as a trace has them, or drawn from stated statistics; sent by vLLM's own reader of traces."""

import json
import statistics

import pytest

from swiftkv.data.workload import REQUESTS, average_lengths, draw_requests, read_trace, repeated_share, write_workload
from swiftkv.errors import UserError
from swiftkv.measure.client import prefix_cache, workload_requests
from swiftkv.measure.dummy import write_dummy
from swiftkv.records import read_json
from tests.unit.measure_helpers import LLAMA

LONGEST = {"input_tokens": 1000, "output_tokens": 100}
SHAPE = {"input_tokens": 800, "output_tokens": 80, "average": "median", "spread": 0.5, "shared": 0.5, "prefixes": 2,
         "burstiness": 0.25, "why": "made up"}  # fmt: skip
STAND_IN = {"requests": 4000, "input_divisor": 4, "output_divisor": 8}
LINES = [
    {"timestamp": 2000, "input_length": 20, "output_length": 3, "hash_ids": [7, 8]},
    {"timestamp": 2500, "input_length": 33, "output_length": 4, "hash_ids": [7, 9, 10]},
    {"timestamp": 4000, "input_length": 5000, "output_length": 4, "hash_ids": list(range(20, 340))},
]
CSV = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:59.5000000,20,3
2023-11-17 00:00:01.2500000,33,4
"""
COLUMNS = {"timestamp": "TIMESTAMP", "input_length": "ContextTokens", "output_length": "GeneratedTokens"}


def workload(source=None, **changes):
    return {"source": source or {}, "statistics": SHAPE, "chunk_tokens": 16, "longest": LONGEST} | changes


@pytest.fixture
def trace(tmp_path):
    """A file of three requests, one of them long, that count milliseconds."""
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return file


@pytest.mark.parametrize("kind", ["local", "url"])
def test_a_trace_is_kept_but_for_long_requests(tmp_path, trace, kind):
    place = str(trace) if kind == "local" else f"file://{trace}"
    write_workload(workload({kind: place, "milliseconds": True}), 0, tmp_path / "out")
    found = [json.loads(line) for line in (tmp_path / "out" / REQUESTS).read_text().splitlines()]
    assert [request["timestamp"] for request in found] == [0.0, 0.5]
    assert [request["hash_ids"] for request in found] == [[7, 8], [7, 9, 10]]
    record = read_json(tmp_path / "out/source.json")
    assert (record["kind"], record["id"], record["requests"], record["left_out"]) == (kind, place, 2, 1)
    assert record["resolved"].startswith("sha256:") and record["mean_input_tokens"] == 26.5
    assert record["repeated"] == 16 / 53


def test_a_csv_has_dates_and_shares_nothing(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(CSV)
    first, second = read_trace(file, {"columns": COLUMNS}, 16)
    assert (first["timestamp"], second["timestamp"]) == (0.0, 1.75)  # over midnight
    assert (second["input_length"], second["output_length"]) == (33, 4)
    assert len(first["hash_ids"]) == 2 and len(second["hash_ids"]) == 3
    assert not set(first["hash_ids"]) & set(second["hash_ids"])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"timestamp": 1, "input_length": 20, "output_length": 3}', "hash_ids"),
        ('{"timestamp": 1, "input_length": 20, "output_length": 3, "hash_ids": [1]}', "1 ids of 16 tokens are fewer"),
        ('{"timestamp": "soon", "input_length": 20, "output_length": 3, "hash_ids": [1, 2]}', "soon"),
        ("once upon", "Expecting value"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path, trace, line, why):
    trace.write_text(trace.read_text() + line)
    with pytest.raises(UserError, match=rf"trace.jsonl, request 4, is not of the stated form .*{why}"):
        write_workload(workload({"local": str(trace), "milliseconds": True}), 0, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_had_is_one_sentence(tmp_path, trace):
    with pytest.raises(UserError, match="local trace 'nowhere' does not exist"):
        write_workload(workload({"local": "nowhere"}), 0, tmp_path / "out")
    short = {"longest": {"input_tokens": 5, "output_tokens": 5}}
    with pytest.raises(UserError, match="no request of .* is as short"):
        write_workload(workload({"local": str(trace)}, **short), 0, tmp_path / "out")


def test_a_network_that_fails_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("swiftkv.hub.WAITS", ())
    with pytest.raises(UserError, match="cannot be downloaded .*: connect to the network, or .* `local` .* `stand_in`"):
        write_workload(workload({"url": f"file://{tmp_path}/nothing.csv"}), 0, tmp_path / "out")


@pytest.mark.parametrize("average", ["mean", "median"])
def test_a_stand_in_has_the_stated_statistics(average):
    entry = workload(stand_in=STAND_IN, statistics=SHAPE | {"average": average})
    assert average_lengths(entry) == (200, 10) and average_lengths(workload()) == (800, 80)
    requests = draw_requests(entry, 0)
    of = {"mean": statistics.fmean, "median": statistics.median}[average]
    assert of(request["input_length"] for request in requests) == pytest.approx(200, rel=0.05)
    assert of(request["output_length"] for request in requests) == pytest.approx(10, rel=0.05)
    times = [request["timestamp"] for request in requests]
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    assert statistics.fmean(gaps) == pytest.approx(1, rel=0.1)
    assert statistics.variance(gaps) == pytest.approx(1 / SHAPE["burstiness"], rel=0.2)  # of a gamma with mean 1
    # Half of each prompt, less what whole chunks leave over, and but for the first of the two beginnings.
    assert 0.4 < repeated_share(requests, 16) < 0.5
    assert draw_requests(entry, 0) == requests != draw_requests(entry, 1)


def test_prompts_that_share_nothing(tmp_path):
    write_workload(workload(stand_in=STAND_IN, statistics=SHAPE | {"shared": 0}), 3, tmp_path / "out")
    record = read_json(tmp_path / "out/source.json")
    assert (record["kind"], record["resolved"], record["repeated"]) == ("drawn", "seed 3", 0)
    assert record["id"] == "stated statistics, prompts 4 times shorter, outputs 8 times shorter"
    assert record["requests"] + record["left_out"] == STAND_IN["requests"]


def test_requests_come_as_vllm_reads_them_at_the_asked_rate(tmp_path):
    from transformers import AutoTokenizer

    write_dummy(LLAMA | {"vocab_size": 50_000}, None, None, tmp_path / "m")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    file = tmp_path / "requests.jsonl"
    times = (5.0, 6.0, 9.0)
    lines = [line | {"timestamp": time} for line, time in zip(LINES, times, strict=True)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second, third = workload_requests(3, 0, 4.0, tokenizer, file=str(file), chunk_tokens=16)
    assert [len(request.prompt) for request in (first, second, third)] == [20, 33, 5000]
    assert [request.expected_output_len for request in (first, second, third)] == [3, 4, 4]
    assert first.prompt[:16] == second.prompt[:16] and first.prompt[16:20] != second.prompt[16:20]
    # Two gaps of 0.25 s in the mean, the second three times the first.
    assert [request.timestamp for request in (first, second, third)] == [0.0, 0.125, 0.5]
    with pytest.raises(UserError, match="has 3 requests, but 4 a second take 5"):
        workload_requests(5, 0, 4.0, tokenizer, file=str(file), chunk_tokens=16)
    file.write_text("".join(json.dumps(line | {"timestamp": 1}) + "\n" for line in LINES))
    with pytest.raises(UserError, match="arrive all at once"):
        workload_requests(3, 0, 4.0, tokenizer, file=str(file), chunk_tokens=16)


def test_a_server_says_what_it_found_in_its_prefix_cache(monkeypatch):
    import io
    import urllib.request

    text = (
        "# HELP vllm:prefix_cache_queries_total\n"
        'vllm:prefix_cache_queries_total{engine="0",model_name="m"} 400.0\n'
        'vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1e+02\n'
        'vllm:external_prefix_cache_hits_total{engine="0"} 9\n'
    )

    class Opener:
        def open(self, url, timeout):
            assert url == "http://x/metrics"
            return io.BytesIO(text.encode())

    monkeypatch.setattr(urllib.request, "build_opener", lambda *handlers: Opener())
    assert prefix_cache("http://x") == (400.0, 100.0)
    text = "nothing"
    assert prefix_cache("http://x") is None
