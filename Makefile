# `make reproduce` and `make test` are all a new user needs; both make .venv on first use.
SHELL := /bin/bash
ACTIVATE := . .venv/bin/activate

.PHONY: setup reproduce test smoke bench lint

reproduce: .venv/.ready  ## every table and figure on a small real model (about half an hour on two cores)
	$(ACTIVATE) && snakemake --profile profiles/local

test: .venv/.ready  ## every test that needs no cluster and no GPU
	$(ACTIVATE) && ruff check . && ruff format --check . && pytest

smoke: .venv/.ready  ## every rule once, on tiny random weights (a few minutes)
	$(ACTIVATE) && snakemake --profile profiles/smoke

bench: .venv/.ready  ## paired performance measurements; nothing else should run meanwhile
	$(ACTIVATE) && python performance/train_throughput.py --output results/bench/train_throughput.json
	$(ACTIVATE) && python performance/serving.py --output results/bench/serving.json

lint: .venv/.ready  ## style of Python and Snakemake files
	$(ACTIVATE) && ruff check . && ruff format --check . && snakefmt --check Snakefile workflow/rules && snakemake --profile profiles/smoke --lint

setup: .venv/.ready  ## the environment alone

.venv/.ready: envs/cpu.lock envs/setup.sh envs/vllm-metadata/pyproject.toml pyproject.toml
	@bash envs/setup.sh
