# The oldest supported interpreter that works here; another one, given by PYTHON=/path/to/python, has a
# virtual environment of its own.
FOUND := $(lastword $(shell scripts/interpreters.sh | head -1))
PYTHON ?= $(FOUND)
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
VENV ?= .venv$(if $(filter-out $(FOUND),$(PYTHON)),-$(VERSION))
BIN := $(VENV)/bin
BASE := $(VENV)/.base
STAMP := $(VENV)/.installed
SOURCES := src tests scripts $(wildcard examples benchmarks)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-legacy hashes prove prepare smoke matrix newest check check-fast \
	format lock hooks clean python

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## create the virtual environment and install everything

# What fragflow itself needs; then what its tests and optional environments need. The locks are
# complete, so pip has nothing to resolve: left to itself it would ask for the newest release of
# whatever is needed with extras (etils[epath]) and then refuse it as not locked. 'pip check' says
# whether a lock is incomplete after all. Most modules are never imported: Python compiles those that are.
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --no-deps --no-compile
# Kernels are built with the headers of the oldest JAX, so that one library beside the sources serves
# the environments of all Pythons. On 3.11 that JAX is the lock's; elsewhere it comes for the build.
ISOLATION := $(if $(filter 3.11,$(VERSION)),--no-build-isolation)
$(BASE): pyproject.toml hatch_build.py requirements-base.lock
	@test -n "$(VERSION)" || { echo "Python '$(PYTHON)' does not run: install Python 3.11, 3.12 or" \
		"3.13, or name one by PYTHON=/path/to/python" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -r requirements-base.lock
	$(INSTALL) $(ISOLATION) -e .
	$(PIP) check
	touch $@

$(STAMP): $(BASE) requirements.lock
	$(INSTALL) -r requirements.lock
	$(PIP) check
	touch $@

demo: $(BASE) ## train PPO on CartPole-v1
	$(BIN)/fragflow train ppo --env CartPole-v1 --total-steps 524288 \
		--run-dir runs/demo-$$(date +%Y%m%d-%H%M%S)

# Without tests/smoke: what is tried there on other interpreters is a little of all the rest.
test: $(STAMP) ## run the tests
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder \
		--durations 50 --durations-min 5 --ignore tests/smoke

test-all: $(STAMP) ## run the slow tests too: hours on two cores
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile -m ""

# gymnax and jaxmarl hold JAX below 0.12, so that they have an environment of their own.
LEGACY := $(VENV)-legacy
$(LEGACY)/.installed: pyproject.toml hatch_build.py requirements-legacy.lock
	test -x $(LEGACY)/bin/python || $(PYTHON) -m venv $(LEGACY)
	$(LEGACY)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-compile \
		-r requirements-legacy.lock
	$(LEGACY)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-compile \
		$(ISOLATION) .
	$(LEGACY)/bin/python -m pip --disable-pip-version-check check
	touch $@

test-legacy: $(LEGACY)/.installed ## run the tests of what holds JAX below 0.12: gymnax, jaxmarl
	PYTHONPATH=src $(LEGACY)/bin/python -m pytest --numprocesses auto --dist loadfile \
		-m "legacy and not slow" $$(grep -rl --include='test_*.py' 'mark.legacy' tests)

prepare: $(STAMP) $(LEGACY)/.installed
	$(BIN)/python scripts/matrix.py prepare --not $(VERSION)

smoke: $(STAMP) ## run a little of everything on the other interpreters that are here
	$(BIN)/python scripts/matrix.py smoke --not $(VERSION)

matrix: $(STAMP) ## run the smoke set on every Python with every JAX; writes docs/versions.md
	$(BIN)/python scripts/matrix.py matrix

newest: $(STAMP) ## run the smoke set with the newest releases within the bounds, without the lock
	$(BIN)/python scripts/matrix.py newest

# Installing and checking types keep one core busy each: they are done side by side.
check: $(STAMP) ## run every check and the tests, here and on other Pythons
	$(MAKE) --jobs 2 --output-sync check-fast prepare
	$(MAKE) test
	$(MAKE) test-legacy
	$(MAKE) smoke

check-fast: $(STAMP) ## check format, lint, types, import contracts and file sizes
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/size_budget.py
	$(BIN)/python scripts/private_parameters.py
	$(BIN)/python scripts/question_docstrings.py

hashes: $(STAMP) ## compare the parameters of short runs of every cell of the table of policies
	$(BIN)/python scripts/hashes.py

prove: $(STAMP) ## hunt for false claims and wrong cuts, for hours; goes on where it was; writes docs/proofs.md
	$(BIN)/python scripts/prove.py

format: $(STAMP) ## format the code and apply safe fixes
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

COMPILE := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

lock: ## update the lock files from pyproject.toml (needs uv)
	$(COMPILE) --extra dev --group build --output-file requirements.lock
	$(COMPILE) --group build --constraint requirements.lock --output-file requirements-base.lock
	$(COMPILE) --extra legacy --group build --output-file requirements-legacy.lock

hooks: ## install a git hook that runs check-fast before each commit
	printf '#!/bin/sh\nexec make check-fast\n' > "$$(git rev-parse --git-path hooks)/pre-commit"
	chmod +x "$$(git rev-parse --git-path hooks)/pre-commit"

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) $(LEGACY) .matrix dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
