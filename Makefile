# Two commands for everybody: `make demo` and `make test`. Both build the wheel, install it
# into .venv and work from there, so what is shown and tested is what would be shipped.
# Stamp files make a second call quick. Needed beforehand: Python 3.11 or newer, make, git.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
DIST := $(VENV)/dist
SOURCES := $(shell find src -name '*.py' -o -path '*/static/*' -o -name '*.json' -o -name 'py.typed') \
	examples/train_digits.py pyproject.toml README.md LICENSE

.PHONY: site browser demo test lint format types docs bench clean

demo: $(VENV)/.stamp-examples
	$(BIN)/rallypoint demo

test: $(VENV)/.stamp-dev
	$(BIN)/python -m pytest -n 4 --dist worksteal $(PYTEST_ARGS)

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.stamp-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.stamp-dev
	$(BIN)/mypy

docs: $(VENV)/.stamp-dev
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/diagram.py

# The docs as a site, strictly: a link that leads nowhere is an error.
site: $(VENV)/.stamp-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

# The live page in a real browser (a Chromium on the PATH); screenshots are kept.
browser: $(VENV)/.stamp-dev $(VENV)/.stamp-browser
	RALLYPOINT_ARTEFACTS=$(VENV)/artefacts $(BIN)/python -m pytest -m browser tests/web

# About 25 minutes and a few GB of environments; each script also runs alone, and one that fails
# does not keep the others from running (benchmarks/README.md).
BENCHMARKS ?= formation store scaling idle launch elastic security
bench:
	@failed=; for name in $(BENCHMARKS); do \
		echo "== $$name, $$(date -u +%H:%M:%S)"; $(PYTHON) benchmarks/$$name.py || failed="$$failed $$name"; \
	done; $(PYTHON) benchmarks/update_docs.py; \
	test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.stamp-wheel: $(SOURCES) | $(BIN)/python
	rm -rf $(DIST)
	$(PIP) wheel --quiet --no-deps --wheel-dir $(DIST) .
	touch $@

# The wheel is put in first, without its dependencies, because its version does not change
# while one works on it and pip would keep the copy it has.
$(VENV)/.stamp-%: $(VENV)/.stamp-wheel
	$(PIP) install --quiet --no-deps --force-reinstall $(DIST)/rallypoint-*.whl
	$(PIP) install --quiet "$$(ls $(DIST)/rallypoint-*.whl)[$*]"
	touch $@
