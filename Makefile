# The commands of the project. `make sweep` and `make test` work on a fresh machine with Python ≥ 3.11 and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime-installed
DEVELOPMENT := $(VENV)/.development-installed
DOCUMENTING := $(VENV)/.documenting-installed
RELEASE := $(VENV)/.release-installed
ORACLES := build/oracles
SPACE ?= search_spaces/quickstart.yaml

BENCHES := overhead order scale lanes calibration curvature-shares replicates lanes-gpu card statistics peers timings

EXTRAS := dev,oracles,onnx,ray-serve
PINNED := --quiet -c constraints.txt
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(PINNED)
# Install $(1) by uv, in a quarter of pip's time; by pip where uv cannot, for example where only pip's settings name an index.
installed = $(BIN)/uv pip install --python $(BIN)/python $(PINNED) $(1) || $(PIP) $(1)

# Hundreds of processes of the tests import the same modules: their bytecode is kept, whatever the caller's setting.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: sweep test test-integration test-both test-slow test-faults test-kills test-canonical test-slurm check check-style check-repeats docs check-docs check-gpu check-wheel check-readme check-pythons evening fuzz rehearse format graph contracts \
	gallery install dist audit sbom notices release-check $(BENCHES:%=bench-%) bench-oracles clean

sweep: $(RUNTIME)
	$(BIN)/sweeper run $(SPACE)

test: $(DEVELOPMENT)
	$(BIN)/python -m pytest -n 3 --dist loadfile --durations=10

# Whole sweeps and clusters, killed, interrupted, exported.
test-integration: $(DEVELOPMENT)
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "integration and not slow"

# Both in one run: the suite is collected once, files share their sweeps, and no core waits between the two.
test-both: $(DEVELOPMENT)
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not slow and not benchmark and not gpu" --durations=10

test-slow: $(DEVELOPMENT)
	$(BIN)/python -m pytest -m slow --timeout 3600

# What only a card can show, in under ten minutes: four trials sharing it, one of them made to run out of memory; measured
# shares; curvature on a share, float32 against TF32, determinism, resumed optimisers, probes, compiled networks and
# copies beside them. Then, whatever failed, the tables of bench_card.py.
check-gpu: $(DEVELOPMENT)
	@$(BIN)/python -c "import torch, sys; torch.cuda.is_available() or sys.exit('no CUDA device, or the torch of $(VENV) is a build without CUDA: install one that fits the driver (https://pytorch.org/get-started)')"
	$(BIN)/python -m pytest tests/gpu -m gpu -s --timeout 300; failed=$$?; \
	$(BIN)/python -m tests.benchmarks.bench_card || exit; exit $$failed

# Every search space that ships with a rehearsal: file, minutes, rows of each table. NAMES="a b" for some of them.
rehearse: $(DEVELOPMENT)
	$(BIN)/python -m tests.rehearsals $(NAMES)

# The full fault suite: twenty random kills each of driver, trial processes, nodes and head, in folders and in a store, and
# twenty outages of a store: two hours on two cores.
test-faults: $(DEVELOPMENT)
	TEST_SEED=random $(BIN)/python -m pytest tests/faults -s -m "slow or not slow" --timeout 3600

# Drivers of many kinds of sweeps killed KILLS times each; every table equal to an undisturbed sweep's.
KILLS ?= 100
test-kills: $(DEVELOPMENT)
	TEST_SEED=random KILLS=$(KILLS) $(BIN)/python -m pytest tests/faults/test_many_kills.py -s -m slow

# One answer from one file: seven kinds of sweeps on 1, 2, 3 and 5 slots, on two nodes of Ray, and after twenty kills.
test-canonical: $(DEVELOPMENT)
	TEST_SEED=random $(BIN)/python -m pytest tests/faults/test_same_everywhere.py -m "integration or slow"

# On a real Slurm of two nodes: seven kinds of sweeps as on one slot, both shapes, a time limit, a full quota, and twenty
# random requeues, cancellations and deaths.
test-slurm: $(DEVELOPMENT)
	TEST_SEED=random $(BIN)/python -m pytest tests/slurm -s -m "slow or not slow" --timeout 7200

check: check-style check-repeats

check-style: $(DEVELOPMENT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/vulture

# Repeated code, six lines and more.
check-repeats: $(DEVELOPMENT)
	$(BIN)/python -m tests.repeats

# 100,000 inputs and more for the search space parser and the readers of results: a plan or rows, or a clear error.
fuzz: $(DEVELOPMENT)
	$(call installed,-e .[fuzz])
	$(BIN)/python -m tests.fuzzing

format: $(DEVELOPMENT)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation's site in docs/build/html, offline, every warning an error. Tutorials and examples are run; a tutorial
# again only when it changed, or in `make check-docs`; none with SPHINX="-D nb_execution_mode=off", as in .ci/run.
docs: $(DOCUMENTING)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/sphinx-build -W --keep-going -q $(SPHINX) -b html docs docs/build/html

# Live reports for the site, at most 20 MB in build/gallery/pages: a sweep is run where build/gallery/results lacks it, forty
# minutes on two cores in all, and needs Debian's dataset-fashion-mnist. `make docs` then adds the pages.
gallery: $(DEVELOPMENT)
	$(BIN)/python -m docs.writing.gallery

check-docs: $(DEVELOPMENT)
	rm -rf docs/build docs/project
	git clean -fdXq docs/reference
	$(MAKE) docs
	$(BIN)/python -m pytest -q tests/release/test_docs.py

# What a release promises to keep: commands, keys, columns, names, files.
contracts: $(DEVELOPMENT)
	$(BIN)/python -m tests.release.contracts

# The graph of folders in CONTRIBUTING.md, from the imports.
graph: $(DEVELOPMENT)
	$(BIN)/python -m tests.import_graph

install: $(RUNTIME)

# torch comes first and by its exact version: a range would bring gigabytes of CUDA packages.
$(RUNTIME): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) uv || true
	$(call installed,-e .)
	touch $@

$(DEVELOPMENT): $(RUNTIME)
	$(call installed,-e .[$(EXTRAS)])
	touch $@

$(DOCUMENTING): $(DEVELOPMENT)
	$(call installed,-e .[docs])
	touch $@

$(RELEASE): $(DEVELOPMENT)
	$(call installed,-e .[release])
	touch $@

# tests/benchmarks/bench_*.py, each of which says what it measures; they want a machine of their own.
$(BENCHES:%=bench-%): bench-%: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.bench_$(subst -,_,$*)

# Metrics, post-hoc methods, sets and corruptions beside independent packages, and curvature of 23 public networks beside
# their plain gradients (a quarter of an hour); packages are installed apart from the rest,
# without what they require in turn: 100 MB. Some bring a package called tests, which would hide ours.
bench-oracles: $(ORACLES)/.installed
	PYTHONPATH=$(CURDIR):$(CURDIR)/$(ORACLES) $(BIN)/python -m tests.benchmarks.bench_oracles

$(ORACLES)/.installed: tests/benchmarks/oracles.txt $(DEVELOPMENT)
	rm -rf $(ORACLES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(ORACLES) -r $<
	rm -rf $(ORACLES)/tests $(ORACLES)/examples
	touch $@

# Wheel and source distribution, the wheel built from the latter.
dist: $(RELEASE)
	rm -rf dist
	$(BIN)/python -m build --outdir dist

# The wheel in an environment of its own, away from this checkout: every command that needs no network, and quickstart.
check-wheel: dist
	$(BIN)/python -m tests.release.clean_environment dist

# One evening of a stranger with the wheel: twenty steps and their seconds. EVENING: the folder that keeps what each said.
evening: dist
	tests/release/evening.sh dist/*.whl $(EVENING)

# Every Python of this machine beside the usual one: install, quickstart of six trials, numerical tests. Gigabytes each.
check-pythons: $(DEVELOPMENT)
	$(BIN)/python -m tests.release.check_pythons $(PYTHONS)

# Every command of README, docs and guides that needs nothing of the reader, from a fresh clone in an empty home.
check-readme: $(DEVELOPMENT)
	$(BIN)/python -m pytest tests/release -m slow -k readme -s --timeout 5400

# Known vulnerabilities of the pinned versions, from PyPI's JSON API; fails where an index has none, as mirrors may.
audit: $(RELEASE)
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip --strict --progress-spinner off

# What an installation brings: build/clean is made by `make check-wheel`.
sbom: $(RELEASE)
	$(BIN)/cyclonedx-py environment build/clean/bin/python --pyproject pyproject.toml --output-file dist/sbom.cdx.json

# Everything that a release needs but the network's list of vulnerabilities (`make audit`): versions and changelog, both
# distributions as PyPI would take them, the wheel at work in an empty environment, the bill of materials.
release-check: $(RELEASE)
	$(BIN)/python -m tests.release.check_release
	$(MAKE) check-wheel
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz
	$(MAKE) sbom
	$(BIN)/python -m tests.release.check_release dist

notices: $(RELEASE)
	$(BIN)/python -m tests.release.notices > THIRD_PARTY_NOTICES.md

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
