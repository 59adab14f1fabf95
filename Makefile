# make run    the main job on this machine: the inventory, a verified all-reduce, the verdict
# make test   the whole test suite
# make test-frameworks  DeepSpeed, Horovod, Accelerate and TensorFlow under `gpudiag train`; installs them in FRAMEWORKS
# make check  formatting, lint, types and the import contracts
#
# Both first make .venv with all they need. PYTHON chooses the interpreter (3.11 or later).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt tools/install_environment.py

.PHONY: run test frameworks test-frameworks check format schemas benchmarks clean

run: $(VENV)/.installed-torch
	$(BIN)/gpudiag list --sources all
	$(BIN)/gpudiag nccl-test
	$(BIN)/gpudiag preflight

test: $(VENV)/.installed-dev
	$(BIN)/pytest -m "not ranks" -n 4
	$(BIN)/pytest -m ranks

FRAMEWORKS ?= build/frameworks

frameworks: $(VENV)/.installed-dev
	$(BIN)/python -m tools.install_frameworks $(FRAMEWORKS)

# What cannot be installed is said, and its tests are skipped with the reason.
test-frameworks: $(VENV)/.installed-dev
	-$(BIN)/python -m tools.install_frameworks $(FRAMEWORKS)
	GPUDIAG_FRAMEWORKS=$(abspath $(FRAMEWORKS)) $(BIN)/pytest -m frameworks

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

schemas: $(VENV)/.installed-dev
	$(BIN)/python tools/write_schemas.py

benchmarks: $(VENV)/.installed-benchmarks
	$(BIN)/python benchmarks/list_command.py
	$(BIN)/python benchmarks/nccl_test_start.py

$(VENV)/.installed-%: $(INPUTS)
	$(PYTHON) tools/install_environment.py $(VENV) $*
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist
