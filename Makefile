# Every target works on a fresh checkout: the virtual environment is made when it is missing or stale.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test check bench lint format clean system-test-packages

install: $(STAMP)  ## make .venv with Weft and what its tests need

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $(STAMP)
	@echo "installed: $(BIN)/weft $$($(BIN)/weft --version)"

demo: $(STAMP)  ## train a small model with 1 parameter server and 3 workers
	@$(BIN)/python scripts/demo.py

test: $(STAMP) system-test-packages  ## everything: lint, types, unit tests, tests on real processes, coverage
	$(BIN)/python scripts/test.py

check: $(STAMP) lint  ## the inner loop: lint, types, rooms, unit tests; under 90 seconds
	$(BIN)/python -m pytest tests/unit -n 2 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## measure every claim; JSON in benchmarks/results, a table at the end
	$(BIN)/python benchmarks/run.py

system-test-packages:
	@sh scripts/system-test-packages.sh

clean:
	rm -rf $(VENV) .coverage* htmlcov .pytest_cache .mypy_cache .ruff_cache .hypothesis
