# make run    the main job on this machine: the inventory, a verified all-reduce, the verdict; without a GPU (the bare
#             command has no verdict: 3) on the CPU, which it then asks for by name
# make test   the test suite: of the tests marked `sliced` one in ten, others at each commit; `make test-all` runs all of it
# make quick  the most useful tests within a minute: lint, the rules of the house, unit tests of nouns, probes, checks, ranks, reports
# make test-check  what a new check or code needs (CONTRIBUTING.md); make test-reading, make test-collective: a new one of these
# make pages  every page and schema that a program writes
# make test-frameworks  DeepSpeed, Horovod, Accelerate and TensorFlow under `gpudiag train`; installs them in FRAMEWORKS
# make docs   the documentation as a site with search, in build/site; make docs-version adds it to a branch of sites, by version
# make gpu    everything that only a GPU can confirm, in ten minutes, with PYTHON and the torch that it has; no venv
# make pythons the unit tests under every Python from 3.10 on that is here; make lowest: with the lowest versions declared
# make torches the rank tests under each of TORCHES, of which every one is a download of gigabytes
# make single-file  gpudiag as one file, build/gpudiag.pex, tried on simulated machines
# make dist   the sdist, with the page in it, and the wheel of that: dist/
# make release  everything that a version is handed out as, in build/release (docs/publishing.md); KEY signs it, WITHOUT names
#             parts to leave out; make dry-run: the same without image and signature, which not every machine can make
# make chart  the Helm chart, rendered by Helm's SDK and held against the manifests and Kubernetes' schemas
# make check  formatting, lint, types and the import contracts
#
# All but `make gpu` first make .venv with all they need. PYTHON chooses the interpreter (3.10 or later).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST ?= $(BIN)/pytest
INPUTS := pyproject.toml constraints.txt tools/install_environment.py

.PHONY: run test test-all test-ranks test-waiting test-computing quick test-check test-reading test-collective pages docs docs-version gpu frameworks test-frameworks pythons torches lowest single-file dist release dry-run chart check format benchmarks clean

run: $(VENV)/.installed-torch
	$(BIN)/gpudiag list --sources all
	@$(BIN)/gpudiag > /dev/null; if [ $$? -eq 3 ]; then set -- "--backend gloo" "--expect-gpus 0"; fi; \
	for command in "nccl-test $$1" "preflight $$2"; do \
		echo "$(BIN)/gpudiag $$command"; $(BIN)/gpudiag $$command || exit; \
	done

# Three lanes at once: what starts ranks, what waits for other processes most of the time, and what computes, with what
# those leave of the processors.
WAITING := tests/api tests/browser tests/cli tests/contract tests/ranks tests/stand_in
SLICE ?= $(shell git rev-list --count HEAD 2>/dev/null || echo 0)/10

test: $(VENV)/.installed-dev
	$(MAKE) --jobs 3 --keep-going --output-sync=recurse test-ranks test-waiting test-computing

test-all:
	$(MAKE) test SLICE=0/1

test-ranks: $(VENV)/.installed-dev
	$(PYTEST) -m ranks --slice $(SLICE) -n 3 --dist worksteal

test-waiting: $(VENV)/.installed-dev
	$(PYTEST) -m "not ranks" --slice $(SLICE) -n 3 --dist worksteal $(WAITING)

test-computing: $(VENV)/.installed-dev
	nice -n 2 $(PYTEST) -m "not ranks" --slice $(SLICE) -n 4 --dist worksteal $(addprefix --ignore=,$(WAITING))

quick: $(VENV)/.installed-dev
	$(BIN)/ruff check -q .
	$(BIN)/pytest -q -n 2 --slice $(SLICE) tests/meta tests/unit/model tests/unit/checks tests/unit/probe tests/unit/render \
		tests/unit/ranks

test-check: $(VENV)/.installed-dev
	$(BIN)/pytest -q -n 2 tests/meta tests/unit/checks tests/scenarios/test_catalogue.py \
		tests/scenarios/test_measures_gone.py

test-reading: $(VENV)/.installed-dev
	$(BIN)/pytest -q -n 2 tests/meta tests/unit/reference tests/unit/model tests/unit/probe/test_nvml_device.py \
		tests/unit/render tests/unit/sampler tests/unit/simulate_library/test_readings.py \
		tests/unit/simulate_scenarios/test_base_machines.py tests/scenarios/test_wide_fits.py \
		tests/api/test_deploy.py::test_own_metrics_are_lint_clean_and_dcgm_ones_parse

test-collective: $(VENV)/.installed-torch $(VENV)/.installed-dev
	$(BIN)/pytest -q -n 2 tests/meta/test_command_tree.py tests/unit/collectives tests/ranks/test_nccl_test.py tests/cli/test_nccl_test.py

# docs/gpu.md. OUTPUT names the folder of the report; STEPS are some of the steps.
gpu:
	$(PYTHON) -m tools.confirm_on_gpu $(if $(OUTPUT),--output $(OUTPUT)) $(if $(STEPS),--only $(STEPS)) $(if $(WHEELS),--wheels $(WHEELS)) $(if $(LIMIT),--limit $(LIMIT))

FRAMEWORKS ?= build/frameworks

frameworks: $(VENV)/.installed-dev
	$(BIN)/python -m tools.install_frameworks $(FRAMEWORKS)

# What cannot be installed is reported, and its tests are skipped with the reason.
test-frameworks: $(VENV)/.installed-dev
	-$(BIN)/python -m tools.install_frameworks $(FRAMEWORKS)
	GPUDIAG_FRAMEWORKS=$(abspath $(FRAMEWORKS)) $(PYTEST) -m frameworks -n 2 --dist worksteal

PYTHONS ?= build/pythons
LOWEST ?= build/lowest

pythons: $(VENV)/.installed-dev
	$(BIN)/python -m tools.pythons $(PYTHONS)

TORCHES ?= 2.4.0 2.6.0 2.8.0 2.14.1 2.15.0

torches: $(VENV)/.installed-dev
	$(BIN)/python -m tools.torches build/torches $(TORCHES)

lowest: $(VENV)/.installed-dev
	$(BIN)/python -m tools.install_lowest $(LOWEST)

single-file: $(VENV)/.installed-dev
	$(BIN)/python -m tools.build_single_file build/gpudiag.pex

RELEASE_TOOLS := build/release-tools

# KEY=FILE WITHOUT=PART,... IMAGE_REPOSITORY=NAME PYTHON_IMAGE=IMAGE TAG=vVERSION
release: check
	$(BIN)/python -m tools.release $(if $(KEY),--key $(KEY)) $(if $(WITHOUT),--without $(WITHOUT)) $(if $(TAG),--tag $(TAG)) \
		$(if $(IMAGE_REPOSITORY),--image-repository $(IMAGE_REPOSITORY)) $(if $(PYTHON_IMAGE),--python-image $(PYTHON_IMAGE))

dry-run: $(VENV)/.installed-dev
	$(BIN)/python -m tools.release --without image,signature

chart: $(VENV)/.installed-dev
	$(BIN)/python -m tools.release.environment $(RELEASE_TOOLS)
	$(PYTEST) tests/api/test_chart.py

# GPUDIAG_DASHBOARD=require: a release has its page. The wheel is built from the sdist, as an index's users do.
dist: $(VENV)/.installed-dev
	rm -rf dist build/sdist
	GPUDIAG_DASHBOARD=require $(BIN)/python -m hatchling build -t sdist -d dist
	mkdir -p build/sdist
	tar -xzf dist/gpudiag-*.tar.gz -C build/sdist --strip-components 1
	cd build/sdist && GPUDIAG_DASHBOARD=require $(abspath $(BIN))/python -m hatchling build -t wheel -d $(abspath dist)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# PAGES names some of them: `make pages PAGES="schemas boards"`.
pages: $(VENV)/.installed-dev
	$(BIN)/python -m tools.write_pages $(PAGES)

# Strict: a dead link, or a page that mkdocs.yml does not list, fails it. Not --quiet, which counts no warning.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "build/site/index.html; to serve it: $(BIN)/mkdocs serve"

# The same for readers of several versions: this one, as `latest`, beside those that the branch has. Nothing is pushed.
DOCS_BRANCH ?= gh-pages
DOCS_VERSION ?= $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' gpudiag/__init__.py)

docs-version: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy --branch $(DOCS_BRANCH) --update-aliases --alias-type copy $(DOCS_VERSION) latest
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/mike set-default --branch $(DOCS_BRANCH) latest
	@echo "branch $(DOCS_BRANCH); to look at it: $(BIN)/mike serve --branch $(DOCS_BRANCH); to publish it: git push REMOTE $(DOCS_BRANCH)"

benchmarks: $(VENV)/.installed-benchmarks
	$(BIN)/python benchmarks/list_command.py
	$(BIN)/python benchmarks/nccl_test_start.py

$(VENV)/.installed-%: $(INPUTS)
	$(PYTHON) tools/install_environment.py $(VENV) $*
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist
