PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.base
STAMP := $(VENV)/.installed
SOURCES := src tests scripts $(wildcard examples benchmarks)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all check check-fast format lock hooks clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## create the virtual environment and install everything

# What fragflow itself needs; then what its tests and optional environments need. The locks are
# complete, so pip has nothing to resolve: left to itself it would ask for the newest release of
# whatever is needed with extras (etils[epath]) and then refuse it as not locked. 'pip check' says
# whether a lock is incomplete after all.
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --no-deps
$(BASE): pyproject.toml hatch_build.py requirements-base.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements-base.lock
	$(INSTALL) --no-build-isolation -e .
	$(PIP) check
	touch $@

$(STAMP): $(BASE) requirements.lock
	$(INSTALL) -r requirements.lock
	$(PIP) check
	touch $@

demo: $(BASE) ## train PPO on CartPole-v1
	$(BIN)/fragflow train ppo --env CartPole-v1 --total-steps 524288 \
		--run-dir runs/demo-$$(date +%Y%m%d-%H%M%S)

test: $(STAMP) ## run the tests
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

test-all: $(STAMP) ## run the slow tests too: hours on two cores
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile -m ""

check: check-fast test ## run every check and the tests

check-fast: $(STAMP) ## check format, lint, types, import contracts and file sizes
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/size_budget.py

format: $(STAMP) ## format the code and apply safe fixes
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

COMPILE := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

lock: ## update the lock files from pyproject.toml (needs uv)
	$(COMPILE) --extra dev --group build --output-file requirements.lock
	$(COMPILE) --group build --constraint requirements.lock --output-file requirements-base.lock

hooks: ## install a git hook that runs check-fast before each commit
	printf '#!/bin/sh\nexec make check-fast\n' > "$$(git rev-parse --git-path hooks)/pre-commit"
	chmod +x "$$(git rev-parse --git-path hooks)/pre-commit"

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
