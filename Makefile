# Everything is run from here; CI calls these targets and nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
export PIP_NO_INPUT = 1

.DEFAULT_GOAL := help
.PHONY: help demo test lint format types clean bench-dedup bench-dedup-growth

help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-19s %s\n", $$1, $$2}'

$(VENV)/.base:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip==$$(sed -n 's/^pip==//p' constraints.txt)
	@touch $@

# The command itself: data side, the embedder of its semantic parts, and trainer.
$(VENV)/.train: $(VENV)/.base pyproject.toml constraints.txt
	$(PIP) -e '.[train,semantic]'
	@touch $@

# What the tests and linters need besides.
$(VENV)/.dev: $(VENV)/.train
	$(PIP) -e '.[train,semantic,dev]'
	@touch $@

# The peers of the benchmarks.
$(VENV)/.bench: $(VENV)/.dev
	$(PIP) -e '.[train,semantic,dev,bench]'
	@touch $@

demo: $(VENV)/.train  ## Install, then the whole journey on data and a model made on the spot (CPU, minutes)
	$(BIN)/lpt demo --dir demo

# Two workers share two cores; the files come in an order of their own (tests/conftest.py).
test: export OMP_NUM_THREADS = 1
test: $(VENV)/.dev  ## Install, then every test
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -q

lint: $(VENV)/.dev  ## Format check, linter, types, and the arrow between the packages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev  ## Format and sort imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-dedup: $(VENV)/.bench  ## Deduplication of 100,000 documents against what people use; writes benchmarks/results/
	$(BIN)/python benchmarks/dedup/run.py --documents 100000

bench-dedup-growth: $(VENV)/.bench  ## The same command on 10,000 to 1,000,000 documents
	$(BIN)/python benchmarks/dedup/run.py --growth 10000,100000,1000000

clean:  ## Remove the virtual environment, caches and the demo's folder
	rm -rf $(VENV) demo build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
