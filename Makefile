# Everything runs in one virtual environment, .venv, which each target makes when it is not there: `make demo` installs
# only what training needs, and the first `make test` adds the rest.
# Another Python:            make test PYTHON=python3.12
# Other arguments for pip:   make test PIP_ARGS="--index-url ..."

PYTHON ?= python3
PIP_ARGS ?=
DATA ?= examples/data
BIN := .venv/bin
PACKAGE := .venv/.package
INSTALLED := .venv/.installed
COMPILED := .venv/.compiled
PEERS := .venv-peers/.installed
WRITERS := .venv-docs/.installed
READERS := .venv-readers/.installed
BENCH_ARGS ?=

# A caller's settings must not decide which modules are found.
unexport PYTHONPATH
unexport PYTHONHOME
unexport VIRTUAL_ENV
# Nor whether what is compiled is kept: tests start hundreds of processes, and pytest compiles each assertion anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types check slow docs house format bench clean

demo: $(PACKAGE)
	@rm -rf demo-data
	@OMP_NUM_THREADS=1 $(BIN)/torchrun --standalone --nproc-per-node 2 \
	    examples/train_fashion_mnist.py --data "$(DATA)" --work demo-data

# The types are checked beside the tests: cold, that is half a minute of one core.
test: lint
	@$(MAKE) --no-print-directory --jobs 2 types check

lint: $(INSTALLED)
	@echo "== lint"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(INSTALLED)
	@echo "== types"
	@$(BIN)/mypy

check: $(COMPILED)
	@echo "== layers, doctests and tests"
	@$(BIN)/python -m pytest --numprocesses auto --dist worksteal --durations 10

# What the default run leaves out because it takes long, and more examples of each property: each test by itself to the
# next process that is free. What fails runs once more, without other tests beside it, and must pass then. Which tests
# failed is kept apart from what other runs of pytest keep, so that the second run has those alone; without any it fails.
SLOW := -m "slow or hypothesis" --hypothesis-profile more --timeout 600 \
    -o faulthandler_timeout=590 -o cache_dir=.pytest_cache/slow

slow: $(INSTALLED) $(READERS)
	@echo "== slow tests"
	@$(BIN)/python -m pytest $(SLOW) --cache-clear --numprocesses auto --dist loadgroup --durations 10 || \
	    { test $$? -eq 1 && echo "== what failed beside other tests, once more and alone" && \
	    $(BIN)/python -m pytest $(SLOW) --last-failed --last-failed-no-failures none -rfEp && \
	    echo "== PASSED ALONE, but not beside other tests: the tests above"; }

# Every link and anchor is checked. Nothing is fetched while it is built. The page of commands is made for the site alone.
docs: $(WRITERS)
	@.venv-docs/bin/python tools/docs/command_line.py
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --clean; \
	    status=$$?; rm docs/command-line.md; exit $$status

# The picture of the packages in docs/contributing.md, from the code.
house: $(INSTALLED)
	@$(BIN)/python tools/docs/house.py

format: $(INSTALLED)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# What wdsdist is compared with lives in an environment of its own. Fewer or other trials: BENCH_ARGS="--kind tokens"
bench: $(PEERS)
	@.venv-peers/bin/python tools/bench/compare.py --json docs/benchmarks.json --chart docs/benchmarks.png \
	    --markdown docs/benchmarks.md $(BENCH_ARGS)

# The libraries of other formats lie beside the environment: they ask for other versions of what it holds.
$(READERS): tests/docs/readers.txt $(INSTALLED)
	@echo "== installing the readers of other formats in $(@D) (once)"
	@rm -rf $(@D)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --no-deps --target $(@D) \
	    --requirement $<
	@touch $@

$(PEERS): tools/bench/peers.txt
$(WRITERS): tools/docs/requirements.txt
$(PEERS) $(WRITERS):
	@echo "== making $(@D) (once)"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --no-deps --requirement $<
	@touch $@

# Modules are compiled as they are imported: two of three never are, and compiling those takes half a minute of a core.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile $(PIP_ARGS) \
    --constraint constraints.txt

$(PACKAGE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "wdsdist needs Python 3.11 or newer; this is $$($(PYTHON) --version)" >&2; exit 1; }
	@echo "== making .venv (once): wdsdist with torch and numpy, a download of some 240 MB"
	@$(PYTHON) -m venv .venv || \
	    { echo "python3 cannot make virtual environments: on Debian, apt-get install python3-venv" >&2; exit 1; }
	@$(PIP) --editable .
	@touch $@

$(INSTALLED): $(PACKAGE)
	@echo "== adding what the tests need to .venv (once): frameworks, stores and tools, a download of some 500 MB"
	@$(PIP) --editable ".[dev]"
	@touch $@

# By one process: the test processes and their fork servers, which start at once, would compile all of it several times.
$(COMPILED): $(INSTALLED)
	@echo "== compiling the tests and what they import (once)"
	@$(BIN)/python -c 'import importlib, pytest; pytest.main(["--collect-only", "-qq"]); \
	    from tests.support.forked import PRELOADED; list(map(importlib.import_module, PRELOADED))' > /dev/null
	@touch $@

clean:
	rm -rf .venv .venv-peers .venv-docs .venv-readers demo-data bench-data build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
