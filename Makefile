# make demo   see it work, in about a minute
# make test   format, lint, types, quick tests: exactly what CI runs
# make test-all   also what takes longer
# make test-gpu   what only a GPU can show

PYTHON ?= python3
BIN := .venv/bin

# Pages are tested in the system's Chromium. Where it is missing, root gets it from the distribution;
# anyone else is told, and these tests are skipped.
NAMES := chromium chromium-browser google-chrome google-chrome-stable chrome
BROWSER := for name in $(NAMES); do if command -v $$name; then exit; fi; done >/dev/null; \
	{ [ "$$(id -u)" = 0 ] && apt-get install --yes --quiet --no-install-recommends chromium; } \
	|| echo "No Chromium was found or installed: tests of pages in a browser will be skipped."

.PHONY: demo test test-all test-gpu check browser format clean

demo: .venv/ready
	$(BIN)/expire-span demo

test: check browser
	$(BIN)/python -m pytest -n 2

test-all: check browser
	$(BIN)/python -m pytest -n 2 -m "not gpu"

test-gpu: .venv/ready
	$(BIN)/python -m pytest -m gpu

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

browser:
	@$(BROWSER)

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Everything is installed once, and again when what is wanted has changed.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed: set PYTHON=...')"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch .venv/ready

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
