"""The claims of the paper and the blog post: that they are well-formed and that the paper's own tables judge them."""

import csv
from pathlib import Path

import pytest
import yaml

from swiftkv.artifacts import contents
from swiftkv.artifacts.claims_file import cells, read_claims
from swiftkv.artifacts.kinds import KINDS
from swiftkv.artifacts.records import read_published
from swiftkv.artifacts.verdicts import HOLDS, UNMEASURED, Scene, judge
from swiftkv.errors import UserError
from tests.unit.artifact_helpers import scale, typed
from tests.unit.claim_helpers import made_claim, made_row

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "resources" / "paper"
TASKS = ("arc-challenge", "winogrande", "hellaswag", "truthfulqa", "mmlu", "mmlu-cot", "gsm8k")

# The columns of each kind's CSV that claims may name.
_SERVED = {"variant", "kv_cache", "point", "status"}
COLUMNS = {
    "quality": {
        "variant", "kv_cache", "part", *TASKS, *(f"{task}_stderr" for task in TASKS), "average", "average_stderr",
        "kl", "kl_stderr", "top1_agreement", "prefill_reduction_percent", "kv_cache_reduction_percent",
    },
    "throughput": {
        *_SERVED, "input_tokens", "tokens_per_second", "tokens_per_second_per_gpu", "normalized_tflops_per_gpu",
        "mfu_percent", "speedup", "speedup_limit", "node_tokens_per_second", "speedup_over_first_model",
    },
    "throughput_table": {
        *_SERVED, "memory_gb", "input_tokens", "tokens_per_second", "speedup", "kv_cache_tokens",
    },
    "latency": {
        *_SERVED, "input_tokens", "request_rate", "ttft_median_ms", "tpot_median_ms", "ttft_reduction_percent",
        "tpot_reduction_percent", "sustained_rate_speedup", "speculative", "boundary_found",
    },
    "forward": {"panel", "variant", "batch_tokens", "milliseconds", "speedup", "layer", "depth_percent", "simscore"},
    "similarity": {"layer", "depth_percent", "simscore", "panel"},
    "flops": {"variant", "relative_percent", "exact_relative_percent", "kv_cache_reduction_percent"},
    "capacity": {"variant", "kv_cache", "capacity_ratio"},
    "alignment": {"variant", "confidence_from", "alignment_percent"},
    "training": {"variant", "hours", "tokens", "gpus", "tokens_per_second_per_gpu"},
}  # fmt: skip

PLACES = {
    "paper": {
        "Abstract", "Sec. 1", "Sec. 3.2", "Sec. 3.4", "Sec. 4.2", "Sec. 4.3", "Sec. 5.1", "Sec. 5.2", "Sec. 5.3",
        "App. B.2", "App. C", "App. D", "App. D.1", "App. E", "Table 1", "Table 5", "Figure 2", "Figure A.1",
    },
    "blog": {
        "footnote 1", "Knowledge recovery", "Batch Inference", "Interactive inference",
        "The real bottleneck: Compute operations",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def config():
    return scale()


@pytest.fixture(scope="module")
def content():
    return read_claims(PAPER / "claims.yaml")


@pytest.fixture(scope="module")
def claims(content):
    return [claim for group in content["claims"].values() for claim in group]


def test_ids_are_unique_and_places_are_in_the_sources(claims):
    assert len({claim["id"] for claim in claims}) == len(claims) > 100
    for claim in claims:
        for source in claim["place"].split("; "):
            source = source.removeprefix("paper, ")
            source, known = (source[6:], PLACES["blog"]) if source.startswith("blog, ") else (source, PLACES["paper"])
            assert source in known | (PLACES["blog"] if claim["place"].startswith("blog") else set()), claim["id"]


def test_cells_are_columns_of_artifacts(claims, config):
    for claim in claims:
        for cell in cells(claim):
            kind = config["artifacts"][cell["artifact"]]["kind"]
            if kind == "absent":
                continue
            named = {cell["column"], *cell["where"], *([cell["along"]] if "along" in cell else [])} - {"role"}
            assert named <= COLUMNS[kind], (claim["id"], named - COLUMNS[kind])


def test_cells_are_of_models_and_variants_that_the_artifact_shows(claims, config):
    for claim in claims:
        for cell in cells(claim):
            entry, where = config["artifacts"][cell["artifact"]], cell["where"]
            scopes = entry.get("parts", [entry])
            roles = {role for scope in scopes for role in [*scope.get("models", []), *entry.get("large_models", [])]}
            if entry["kind"] != "absent":
                assert where["role"] in roles, (claim["id"], where["role"])
            if "part" in where:
                assert where["part"] in [part["title"] for part in entry["parts"]], claim["id"]
            if isinstance(where.get("variant"), str):
                shown = {case[0] for scope in scopes for case in contents.cases(typed(config), scope["variants"])}
                assert where["variant"] in shown, (claim["id"], where["variant"])


def test_the_models_claims_are_about_play_the_roles_at_the_scale_of_the_paper(content, config):
    for role, published in content["models"].items():
        model = config["roles"][role]
        assert config["models"][model].get("published", model) == published


def test_what_holds_also_holds_in_direction(claims):
    for claim in claims:
        if isinstance(claim["holds"], list) and "direction" in claim:
            (low, high), (weak_low, weak_high) = claim["holds"], claim["direction"]
            assert weak_low is None or (low is not None and weak_low <= low), claim["id"]
            assert weak_high is None or (high is not None and weak_high >= high), claim["id"]


# The sentences that the sources' own tables do not bear out, and where the notes say so.
CONTRADICTED = {"across8", "across16", "blog-t1-8b-least", "blog-t1-70b-most"}


def test_the_papers_own_tables_bear_its_claims_out(content, claims, config):
    """On the published tables every claim holds that they can judge, but those known to contradict them."""
    scene = published_scene(content, config)
    found = {
        claim["id"]: judge(claim, scene) for claim in claims if all(c["artifact"] in scene.tables for c in cells(claim))
    }
    judged = {name: verdict for name, verdict in found.items() if verdict.verdict != UNMEASURED}
    assert len(judged) >= 60
    assert {name for name, verdict in judged.items() if verdict.verdict != HOLDS} == CONTRADICTED
    notes = {claim["id"]: claim.get("note", "") for claim in claims}
    assert all("Table" in notes[name] for name in CONTRADICTED - {"blog-t1-8b-most"})


def published_scene(content, config) -> Scene:
    """The published tables in the form of our CSVs, on the paper's hardware."""
    tables = {}
    for name, entry in config["artifacts"].items():
        file = PAPER / f"{name}.csv"
        if entry["kind"] in ("quality", "flops") and file.exists():
            tables[name] = [dict(row) for row in read_published([file])]
        elif entry["kind"] == "throughput_table":
            tables[name] = published_throughput(read_published([file]))
    for rows in tables.values():
        for row in rows:
            if row.get("average") is None and all(row.get(task) is not None for task in TASKS):
                row["average"] = sum(row[task] for task in TASKS) / len(TASKS)
    roles = {
        role: {"name": published, "title": published, "published": published}
        for role, published in content["models"].items()
    }
    return Scene(tables, roles, content["models"], content["benchmarks"])


def published_throughput(published):
    rows = []
    for line in published:
        names = ("baseline", "merge_all_layers", "swiftkv_50", "swiftkv_50_across4", "swiftkv_50_across4_fp8")
        for name in filter(line.__contains__, names):
            value = None if line[name] == "OOM" else line[name]
            base = None if line["baseline"] == "OOM" else line["baseline"]
            rows.append(
                {
                    "model": line["model"],
                    "variant": name.removesuffix("_fp8").replace("_", "-"),
                    "kv_cache": "fp8" if name.endswith("_fp8") else "auto",
                    "status": "ok" if value else "oom",
                    "memory_gb": line.get("memory_gb"),
                    "input_tokens": {"4K": 4000.0, "16K": 16000.0}.get(line.get("input_length")),
                    "conditions": f"{line.get('gpus', 1):g} × NVIDIA H100 80GB HBM3, vLLM",
                    "tokens_per_second": value,
                    "speedup": value / base if value and base else None,
                }
            )
    return rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"holds": [1]}, "holds"),
        ({"cell": {"artifact": "t", "column": "x", "where": {}}}, "role"),
        ({"largest": {"artifact": "t", "column": "x", "where": {"role": "small"}}}, "exactly one of"),
        ({"hardware": "H100"}, "hardware"),
        ({"hold": [1, 2]}, "hold"),
    ],
)
def test_a_wrong_claim_is_refused_with_its_place(tmp_path, change, message):
    file = tmp_path / "claims.yaml"
    file.write_text(
        yaml.safe_dump({"models": {}, "benchmarks": 7, "claims": {"g": [made_claim(holds=[0, 1]) | change]}})
    )
    with pytest.raises(UserError, match=message) as error:
        read_claims(file)
    assert "claims.g.0" in str(error.value)


def test_the_table_of_claims(tmp_path, config):
    """The kind reads the CSVs it needs, counts the verdicts and writes one line a claim."""
    entry = contents.resolve(typed(config), "claims")
    needed = contents.needs(typed(config), "claims")
    assert {"results/tables/table2.csv", "results/figures/figure3.csv"} < set(needed["tables"])
    files = {"claims": [PAPER / "claims.yaml"], "tables": [tmp_path / f"{name}.csv" for name in entry["judged_on"]]}
    for file in files["tables"]:
        file.write_text("model,variant,row\n")
    lines = [
        made_row(variant, model="llama-3.1-8b", kv_cache="auto", average=average, average_stderr=0.1)
        for variant, average in (("baseline", 73.7), ("swiftkv-50", 72.7))
    ]
    with open(tmp_path / "table2.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, [*lines[0], "prefill_reduction_percent"])
        writer.writeheader()
        writer.writerows(lines)
    table = KINDS["claims"].make(entry, files)
    by_id = table.values.set_index("id")
    assert len(by_id) == sum(len(panel.frame) for panel in table.panels) > 100
    loss = by_id.loc["loss-50"]
    assert (loss["verdict"], round(loss["value"], 3), round(loss["stderr"], 3)) == (HOLDS, 1.0, 0.141)
    assert loss["model"] == "Llama-3.1-8B-Instruct"
    assert by_id.loc["loss-70b", "verdict"] == UNMEASURED
    assert f"{len(by_id)} claims: 1 holds, " in table.notes[0]
