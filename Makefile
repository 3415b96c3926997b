# The commands of the project. `make sweep` and `make test` work on a fresh machine with Python ≥ 3.11 and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime-installed
DEVELOPMENT := $(VENV)/.development-installed
SPACE ?= search_spaces/quickstart.yaml

.PHONY: sweep test test-slow rehearse test-faults check-gpu bench-trials check format install bench-overhead bench-losses bench-posthoc bench-curvature bench-scheduler bench-replicates bench-lanes-gpu bench-lane-memory bench-lane-evaluation bench-training bench-mlflow-faults bench-report simulate-cluster clean

sweep: $(RUNTIME)
	$(BIN)/sweeper run $(SPACE)

test: $(DEVELOPMENT)
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(DEVELOPMENT)
	$(BIN)/python -m pytest -m slow --timeout 3600

# What only a card can show: four trials sharing it, one of them made to run out of memory; measured shares.
check-gpu: $(DEVELOPMENT)
	@$(BIN)/python -c "import torch, sys; torch.cuda.is_available() or sys.exit('no CUDA device, or the torch of $(VENV) is a build without CUDA: install one that fits the driver (https://pytorch.org/get-started)')"
	$(BIN)/python -m pytest tests/gpu -m gpu -s --timeout 1800

# Every search space that ships, scaled down to minutes: file, minutes, rows of each table. NAMES="a b" for some of them.
rehearse: $(DEVELOPMENT)
	$(BIN)/python -m tests.rehearsals $(NAMES)

# The full fault suite: twenty random kills each of driver, trial processes, nodes and head; half an hour on two cores.
test-faults: $(DEVELOPMENT)
	$(BIN)/python -m pytest tests/faults -s -m "slow or not slow" --timeout 3600

check: $(DEVELOPMENT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEVELOPMENT)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(RUNTIME)

# torch comes first and by its exact version: a range would bring gigabytes of CUDA packages.
$(RUNTIME): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(DEVELOPMENT): $(RUNTIME)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .[dev,oracles]
	touch $@

bench-overhead: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.bench_overhead

bench-losses: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.bench_losses

bench-posthoc: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.bench_posthoc

bench-curvature: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.bench_curvature

bench-scheduler: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.bench_scheduler

bench-trials: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.bench_trials

# A broken MLflow server beside a healthy one; once on each kind of store.
bench-mlflow-faults: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.bench_mlflow_faults --backend sqlite
	$(BIN)/python -m tests.benchmarks.bench_mlflow_faults --backend postgresql

bench-replicates: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.bench_replicates

# Lanes, replicates in turn and fractions of a card, for K = 1, 2, 5, 10, 20: on any machine with a CUDA card.
bench-lanes-gpu: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.bench_lanes_gpu

bench-lane-memory: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.bench_lane_memory

bench-lane-evaluation: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.bench_lane_evaluation

bench-training: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.bench_training

# Report, SQL and tables of 1,000 and of 10,000 trials, and how soon a browser shows the page.
bench-report: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.bench_report

# 100,000 trials on 1,000 GPUs with an injected clock: what reaches driver, journal, MLflow, tables and head.
simulate-cluster: $(DEVELOPMENT)
	$(BIN)/python -m tests.benchmarks.simulate_cluster

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
