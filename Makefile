# `make reproduce` and `make test` are all a new user needs; both make .venv on first use.
SHELL := /bin/bash
ACTIVATE := . .venv/bin/activate
PROFILE ?= local
REPORT = results/$(filter-out slurm gpu,$(PROFILE))/report.html

.PHONY: setup reproduce plan check report test test-slurm smoke bench lint

reproduce: .venv/.ready  ## every table and figure on a small real model (about 70 minutes on two cores)
	$(ACTIVATE) && snakemake --profile profiles/local

plan: .venv/.ready  ## what a run would cost, before it starts: jobs, hours, disk, downloads, licenses; PROFILE names the scale
	@$(ACTIVATE) && python workflow/scripts/plan.py --profile $(PROFILE)

report: .venv/.ready  ## one HTML file with all that was made; PROFILE names the scale
	$(ACTIVATE) && snakemake --profile profiles/$(PROFILE) --report $(REPORT)

check: .venv/.ready  ## what a run needs, before hours are lost; PROFILE names the scale, TARGETS what is to be made
	$(ACTIVATE) && python workflow/scripts/check.py --profile $(PROFILE) $(TARGETS)

# Each test computes on one thread. Tests of a file share what they set up, so a file stays in one process.
test: .venv/.ready  ## every test that needs no cluster and no GPU
	$(ACTIVATE) && ruff check . && ruff format --check . && pytest --numprocesses 2 --dist loadfile

# As root, with Debian's slurmctld, slurmd, slurm-client and munge.
test-slurm: .venv/.ready  ## the smoke scale and its faults on a throw-away SLURM with pretend GPUs
	$(ACTIVATE) && pytest -m slurm tests/slurm

smoke: .venv/.ready  ## every rule once, on tiny random weights (a few minutes)
	$(ACTIVATE) && snakemake --profile profiles/smoke

bench: .venv/.ready  ## paired performance measurements; nothing else should run meanwhile
	$(ACTIVATE) && python performance/train_throughput.py --output results/bench/train_throughput.json
	$(ACTIVATE) && python performance/serving.py --output results/bench/serving.json

# Snakemake's lint wants a conda environment or container for each rule; here all rules share .venv, made from a lock file.
lint: .venv/.ready  ## style of Python and Snakemake files
	$(ACTIVATE) && ruff check . && ruff format --check . && snakefmt --check Snakefile workflow/rules
	$(ACTIVATE) && ! snakemake --profile profiles/smoke --lint 2>&1 | grep '^    \* ' | grep -v 'conda environment or container'

setup: .venv/.ready  ## the environment alone

.venv/.ready: envs/cpu.lock envs/setup.sh envs/vllm-metadata/pyproject.toml pyproject.toml
	@bash envs/setup.sh
