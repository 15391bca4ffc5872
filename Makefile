# Everything a newcomer needs: `make demo` shows it, `make test` proves it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# Every install goes through constraints.txt, build environments included: what is tested is what is installed. Python compiles
# what is imported when it is imported; compiling all of torch beforehand takes longer than the demo.
# Tests and demo start many processes: each would compile torch anew if a shell forbade it to keep what was compiled.
unexport PYTHONDONTWRITEBYTECODE
PIP := PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: demo docs test test-slow test-flower audit mutants fuzz lint format dist lowest bench clean help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[all]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) -e '.[dev]'
	@touch $@

demo: $(VENV)/installed  ## compare private recipes with non-private training on digits, with and without features, write runs/demo/report.html
	$(BIN)/apportion compare demo --out runs/demo

test: $(VENV)/installed-dev  ## the core test suite
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow"

audit: $(VENV)/installed-dev  ## attack the library with canaries, and builds of it that are broken on purpose (minutes)
	$(BIN)/apportion audit run --out runs/audit.html
	$(BIN)/python -m pytest -q -m slow tests/audit/test_statistical.py

test-slow: $(VENV)/installed-dev  ## the long tests
	$(BIN)/python -m pytest -q -n $(WORKERS) -m slow

mutants: $(VENV)/installed-dev  ## seed known privacy bugs, one at a time, and see that the tests catch each
	$(BIN)/python tests/mutants/run.py --jobs $(WORKERS) --write docs/seeded-bugs.md

fuzz: $(VENV)/installed-dev  ## 10,000 malformed inputs: each is refused in one line, and nothing is charged; then new examples for every property
	APPORTION_FUZZ=10000 $(BIN)/python -m pytest -q -n $(WORKERS) tests/fuzz
	APPORTION_FUZZ=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m hypothesis --ignore tests/fuzz

$(VENV)/installed-docs: $(VENV)/installed
	$(PIP) -e '.[docs]'
	@touch $@

docs: $(VENV)/installed-docs  ## the documentation as a site in site/, with the API from the docstrings; strict and offline
	$(BIN)/python docs/assemble.py
	$(BIN)/zensical build --strict

lint: $(VENV)/installed-dev  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-dev  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dist: $(VENV)/installed-dev  ## build the packages and try the wheel in an empty environment, without this checkout
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build
	$(BIN)/python .ci/try_wheel.py dist/*.whl

# An environment of its own; not part of CI.
lowest:  ## a part of the test suite with the lowest versions that pyproject.toml allows
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e '.[all]' pytest pytest-xdist hypothesis
	.venv-lowest/bin/python -m pytest -q -n $(WORKERS) -m "not slow" tests/accounting tests/cli tests/curator tests/data tests/report tests/training tests/integrations

# Flower pins other versions of typer and rich than the command line needs.
.venv-flower/installed: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv .venv-flower
	PIP_CONSTRAINT=$(CURDIR)/constraints-flower.txt .venv-flower/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[flower]' pytest hypothesis
	@touch $@

test-flower: .venv-flower/installed  ## federated training over Flower: its tests, and a SuperLink with SuperNodes in processes of their own
	.venv-flower/bin/python -m pytest -q -m "slow or not slow" tests/flower

# The peers live in an environment of their own, so that they cannot hold back what the library is tested with.
.venv-bench/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-bench
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt .venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -e '.[all]' opacus==1.6.0
	-.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --no-deps prv-accountant
	@touch $@

bench: .venv-bench/installed  ## speed against the peers, in .venv-bench (minutes; use a quiet machine)
	.venv-bench/bin/python benchmarks/accounting.py --json benchmarks/accounting.json
	.venv-bench/bin/python benchmarks/engine.py
	-.venv-bench/bin/python benchmarks/engine.py --more
	-.venv-bench/bin/python benchmarks/beside.py
	-.venv-bench/bin/python benchmarks/growth.py
	.venv-bench/bin/python benchmarks/memory.py
	.venv-bench/bin/python benchmarks/memory.py --check
	.venv-bench/bin/python benchmarks/data_path.py
	-.venv-bench/bin/python benchmarks/noise.py --large --json benchmarks/noise.json
	-.venv-bench/bin/python benchmarks/scaling.py --json benchmarks/scaling.json
	.venv-bench/bin/python benchmarks/scaling_page.py
	.venv-bench/bin/python benchmarks/engine.py --write

clean:  ## remove what the commands above made
	rm -rf $(VENV) .venv-bench .venv-flower .venv-lowest dist build site runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
