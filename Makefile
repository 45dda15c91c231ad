# One line a target; `make help` lists them. Everything lives in .venv and runs/, both ignored by git.
PYTHON ?= python3
UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
export UV_FIND_LINKS
CUDA := $(shell command -v nvidia-smi)
# A local torch build, when find-links names one; otherwise the build that fits this machine.
TORCH := $(if $(UV_FIND_LINKS),,--torch-backend $(if $(CUDA),auto,cpu))
# The lock is for a CPU; where CUDA is, vLLM and torch are other distributions.
ON_CUDA := -e .[data,train,serve-cuda,cluster] --group dev
PACKAGES := $(if $(CUDA),$(ON_CUDA),-r requirements.lock -e .)
UV := $(or $(shell command -v uv),.uv/bin/uv)
INSTALL := $(UV) pip install --quiet --python .venv/bin/python --compile-bytecode --overrides infra/overrides.txt $(TORCH)
BIN := .venv/bin
PROFILE ?= laptop
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test check fix docs bench bench-data bench-checkpoint bench-telemetry prove serve clean lock

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/.ready ## Install everything into .venv (once; again when the lock changes)

demo: setup ## Raw text to a served, scored model; prints where the report lies
	$(BIN)/stanchion run end_to_end --profile $(PROFILE)

test: setup ## Run the tests, a file at a time on up to four cores
	$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --cov --cov-report=term:skip-covered

check: setup ## Lint, types, layers, spelling, generated docs: exactly what CI checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python -m components.catalog --check README.md

fix: setup ## Mend what a machine can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup ## Regenerate the catalog in README.md
	$(BIN)/python -m components.catalog README.md

bench: setup ## Run every case study and keep its figures and pictures in case_studies/results/
	$(BIN)/stanchion case --all --keep --profile $(PROFILE)

prove: setup ## Try every claim about data, checkpoints and faults in full; figures in case_studies/results/proofs/
	$(BIN)/python -m case_studies.proofs

bench-data: setup | $(UV) ## Race our loader against its peers, each in its own environment; BENCH_DOCUMENTS=20000 is short
	$(BIN)/python -m case_studies.benchmarks.data_loaders --uv $(UV) $(if $(BENCH_DOCUMENTS),--documents $(BENCH_DOCUMENTS))
	$(BIN)/python -m case_studies.benchmarks.tokenise_and_shard

bench-checkpoint: setup ## Time what training waits for when it saves, against DeepSpeed and torch DCP
	$(BIN)/python -m case_studies.benchmarks.checkpoints

bench-telemetry: setup ## Time what beats, phases, waits and events cost a step of bare DeepSpeed
	$(BIN)/python -m case_studies.benchmarks.telemetry

serve: setup ## Start a Prefect server, a worker and all deployments; Ctrl-C ends them
	$(BIN)/python -m flows._serve

clean: ## Remove runs, the environment and caches
	rm -rf runs .venv .uv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage

lock: $(UV) ## Resolve requirements.lock anew
	$(UV) pip compile pyproject.toml --extra data --extra train --extra serve --extra cluster --group dev \
	  --overrides infra/overrides.txt $(TORCH) --python-version 3.11 --upgrade --quiet \
	  --no-header --no-annotate --no-emit-find-links --no-emit-index-url -o requirements.lock

.uv/bin/uv:
	@$(PYTHON) -m pip --version >/dev/null || { echo "pip is missing: apt-get install python3-pip"; exit 1; }
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target .uv uv

.venv/.ready: requirements.lock infra/overrides.txt pyproject.toml | $(UV)
	@echo "Installing into .venv (a few GB; a minute or two)"
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv
	@$(INSTALL) $(PACKAGES)
	@touch $@
