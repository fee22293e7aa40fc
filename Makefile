# Every target works on a fresh checkout: the virtual environment is made when it is missing or stale.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
PAGE := $(shell find ui -name node_modules -prune -o -type f -print)

.PHONY: install demo test check bench lint format clean system-test-packages k8s-testbed k8s-testbed-down

install: $(STAMP)  ## make .venv with Weft and what the demo needs

$(STAMP): pyproject.toml scripts/build_page.py $(PAGE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Weft needs Python 3.11 or newer: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || sh scripts/install-venv.sh
	@echo "making $(VENV) and installing Weft into it"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) -e ".[demo]"
	@touch $(STAMP)
	@echo "installed $$($(BIN)/weft --version): $(BIN)/weft --help"

$(DEV_STAMP): $(STAMP)
	@echo "installing what the tests need"
	@$(PIP) -e ".[dev]"
	@touch $(DEV_STAMP)

demo: $(STAMP)  ## train a small model with 1 parameter server and 3 workers
	@$(BIN)/python scripts/demo.py

test: $(DEV_STAMP) system-test-packages  ## everything: lint, types, unit tests, tests on real processes, on a cluster and in a browser
	$(BIN)/python scripts/test.py

check: $(DEV_STAMP) lint  ## the inner loop: lint, types, rooms, unit tests; under 90 seconds
	$(BIN)/python -m pytest tests/unit -m "not slow" -n 2 --dist worksteal

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV_STAMP)  ## measure every claim; JSON in benchmarks/results, a table at the end
	$(BIN)/python benchmarks/run.py

k8s-testbed: $(STAMP)  ## a real Kubernetes on this machine, with NODES simulated nodes (docs/testbed.md)
	@PYTHONPATH=scripts $(BIN)/python -m testbed up --nodes $(or $(NODES),300) $(if $(SCHEDULER),--scheduler)

k8s-testbed-down:  ## end every process of it
	@PYTHONPATH=scripts $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m testbed down

system-test-packages:
	@sh scripts/system-test-packages.sh

clean:
	rm -rf $(VENV) ui/node_modules src/weft/server/page .artifacts .coverage* htmlcov .pytest_cache .mypy_cache .ruff_cache .hypothesis
