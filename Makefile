# Two commands: `make demo` runs the whole workflow on its embedded default, `make test` the tests.
PYTHON ?= python3
CORES ?= all
LOCK := $(shell cat pyproject.toml constraints.txt | $(PYTHON) -c "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:16])")
INSTALLED := .venv/installed-$(LOCK)
BIN := .venv/bin

.PHONY: demo test test-fast lint format clean

demo: $(INSTALLED)
	@$(BIN)/snakemake --cores $(CORES) --configfile config/demo.yaml
	@echo "The report is at results/demo/report/index.html; open it in a browser."

# Two workers with one thread each: on two cores more threads wait for one another.
test: $(INSTALLED)
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# The tests of single functions, without the slow ones: no workflow, no encoder, no browser.
test-fast: $(INSTALLED)
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest tests/unit -m "not slow" --numprocesses 2

lint: $(INSTALLED)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/snakefmt --check Snakefile workflow/rules
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/python tools/wordlist.py
	@$(BIN)/snakemake --lint --configfile config/demo.yaml

format: $(INSTALLED)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/snakefmt Snakefile workflow/rules

# A virtual environment with the pinned versions; made anew only when they change.
$(INSTALLED):
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed; give one with: make PYTHON=python3.11 ...')"
	@echo "Installing the pinned packages into .venv (a few minutes, several GB: torch)"
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[test]'
	@touch $@

clean:
	rm -rf .venv results/demo .snakemake
