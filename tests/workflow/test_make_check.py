"""`make check` and the start of a run on SLURM: what is wrong is said before anything is submitted."""

import re
import sys

import pytest
import yaml
from tests.programs import ROOT, read_yaml, run
from tests.unit.slurm_stand_ins import install

CHECKPOINT = "results/checkpoints/llama-3.1-70b/swiftkv-50/config.json"  # of a training on 4 nodes
TABLE = "results/tables/table2.tex"
FOR_THE_PROCESSOR = r"jobs ask for GPUs, and in \S+ torch is a build for the processor: `make setup-gpu`"


@pytest.fixture
def site(tmp_path):
    """A copy of profiles/slurm in a folder of its own, for a cluster of stand-ins."""
    profile = read_yaml(ROOT / "profiles/slurm/profile.yaml")
    own = read_yaml(ROOT / "profiles/slurm/site.yaml")
    install(tmp_path / "bin")
    (tmp_path / "queue").touch()
    generate = ["generate-slurm-partition-config", "--output", tmp_path / "partitions.yaml"]
    assert run(*generate, path=[tmp_path / "bin"]).returncode == 0

    def start(*command):
        (tmp_path / "profile.yaml").write_text(yaml.safe_dump(profile))
        (tmp_path / "site.yaml").write_text(yaml.safe_dump(own))
        places = {name.upper(): str(tmp_path / name) for name in ("queue", "submitted", "hf_home")}
        return run(*command, cwd=tmp_path, path=[tmp_path / "bin"], **places)

    start.profile, start.site, start.folder = profile, own["gpu_jobs"], tmp_path
    return start


def test_the_profiles_partitions_are_as_the_plugin_writes_them(site):
    written, shipped = (read_yaml(folder / "partitions.yaml") for folder in (site.folder, ROOT / "profiles/slurm"))
    assert written == shipped


def test_all_faults_are_seen_at_once_each_in_one_line(site):
    site.profile["set-resources"]["heldout"] = {"slurm_partition": "standard"}
    site.site["mem_mb_per_node"] = 2000000  # only reached when jobs are tried again
    queue = ["7|{}|rule_distill_wildcards_x", "8|{}/elsewhere|rule_distill_x", "9|{}|(null)", "10|{}|rule_heldout"]
    (site.folder / "queue").write_text("\n".join(queue).format(*[site.folder] * 4))
    ended = site(sys.executable, "-m", "pipeline", "check", "--profile", site.folder, TABLE)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    failed = [line.removeprefix("FAIL  ") for line in ended.stdout.splitlines() if line.startswith("FAIL  ")]
    for words in (
        r"queue: jobs of an earlier run in this directory .*: 7 \(distill\), 10 \(heldout\);",
        f"torch: {FOR_THE_PROCESSOR}",
        r"request: of rule .*heldout.* slurm_partition, now 'standard'",
        r"request: of rule distill .* --mem 2000000",
        r"hub: HF_HUB_OFFLINE is set, .* meta-llama/Llama-3.1-8B-Instruct, Hugging",
    ):
        assert len([line for line in failed if re.match(words, line)]) == 1, (words, failed)
    # 7 x (0.7 GB of added weights and three states of 4)
    assert re.search(r"^(ok|FAIL) +disk: .* 8\d\.\d GB ", ended.stdout, flags=re.MULTILINE)


def test_a_probe_that_slurm_refuses_fails(site):
    install(site.folder / "bin", sbatch='echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1')
    ended = site(sys.executable, "-m", "pipeline", "probe", "--profile", site.folder, TABLE)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert re.search("8 GPUs .* rule distill .* h100", ended.stdout)
    assert "QOSMaxSubmitJobPerUserLimit" in ended.stdout and "FAIL  job:" in ended.stdout
    assert not list(site.folder.rglob(".probe"))


def test_a_probe_has_the_gpus_of_the_largest_job_as_the_site_states_them(site):
    site.site["gres"] = f"gpu:{site.site['resources'].pop('gpu_model')}"
    install(site.folder / "bin", sbatch='echo "$*" >> "$SUBMITTED"; exit 1')
    site(sys.executable, "-m", "pipeline", "probe", "--profile", site.folder, CHECKPOINT)
    submitted = (site.folder / "submitted").read_text()
    assert "--nodes=4" in submitted and "--gres=gpu:h100:8" in submitted and "--gpus" not in submitted


def test_a_run_with_a_wrong_partition_submits_nothing(site):
    site.site["resources"]["slurm_partition"] = "h200"
    ended = site("snakemake", "--snakefile", ROOT / "Snakefile", "--profile", site.folder, TABLE)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    torch, partition = (line for line in ended.stderr.splitlines() if line.startswith("error: "))
    assert re.match(f"error: {FOR_THE_PROCESSOR}", torch)
    assert "distill" in partition and "slurm_partition, now 'h200', under gpu_jobs" in partition
    assert not (site.folder / "submitted").exists()


def test_a_machine_whose_torch_is_for_the_processor_starts_no_job_with_gpus(site):
    command = ["snakemake", "--snakefile", ROOT / "Snakefile", "--profile", ROOT / "profiles/gpu"]
    ended = site(*command, "results/similarity/llama-3.1-8b.json")
    assert ended.returncode == 1 and re.search(f"^error: {FOR_THE_PROCESSOR}", ended.stderr, flags=re.MULTILINE)
    assert "Traceback" not in ended.stderr and not (site.folder / "results").exists()
