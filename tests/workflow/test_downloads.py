"""Only jobs that say so ask the hub."""

import os
import subprocess

from tests.programs import ROOT


def job(command, **variables):
    """What a job prints whose rule's shell is `command`."""
    clean = {name: os.environ[name] for name in ("PATH", "HOME")} | {"HF_HUB_OFFLINE": "0"}
    script = f'. "{ROOT}/workflow/environment.sh"; {command}'
    run = subprocess.run(["bash", "-c", script], env=clean | variables, capture_output=True, text=True)
    return run.stdout, run.stderr


def test_a_job_is_offline_unless_it_says_otherwise():
    show = "bash -c 'echo \"$HF_HUB_OFFLINE $HF_HOME\"'"
    assert job(show)[0] == "1 \n"
    assert job(f"online {show}", XDG_CACHE_HOME="/c a")[0] == "0 /c a/huggingface\n"
    assert job(f"online {show}", HF_HUB_OFFLINE="1", HF_HOME="/h")[0] == "1 /h\n"


def test_caches_of_a_job_with_gpus_are_its_own_and_go_with_it(tmp_path):
    show = 'echo "$XDG_CACHE_HOME $HF_HOME $VLLM_CACHE_ROOT $TRITON_CACHE_DIR $TORCHINDUCTOR_CACHE_DIR"; ls -d "$XDG_CACHE_HOME"'
    places = {"LOCAL_CACHE": str(tmp_path), "HF_HOME": "/shared"}
    printed, said = job(f"{show}; online bash -c 'echo $HF_HOME'", CUDA_VISIBLE_DEVICES="0", **places)
    caches, folder, shared = printed.splitlines()
    assert all(cache.startswith(f"{tmp_path}/swiftkv-") for cache in caches.split()) and len(set(caches.split())) == 5
    assert folder == caches.split()[0] and shared == "/shared" and not said
    assert not list(tmp_path.iterdir())
    printed, said = job('echo "$HF_HOME"', CUDA_VISIBLE_DEVICES="0", LOCAL_CACHE="/no/such", HF_HOME="/shared")
    assert printed == "/shared\n" and "warning: gpu_jobs.local_cache" in said
