#!/usr/bin/env bash
# One evening of a stranger: the wheel in an empty environment, then everything that a first project needs, each step timed.
#
#   tests/release/evening.sh dist/calibration_sweeper-….whl [FOLDER] [PYTHON]
#
# PYTHON is an environment that holds the wheel already; without it, one is made. No step may fail. Steps that need an
# extra of the wheel (`serve`) are tried, and the error that names the extra is shown.
set -euo pipefail
wheel=$(realpath "$1") folder=${2:-$(mktemp -d)} python=${3:+$(realpath -s "$3")}
constraints=$(realpath "$(dirname "$0")/../../constraints.txt")
mkdir -p "$folder" && cd "$folder" && folder=$PWD
export HOME=$PWD/home && mkdir -p "$HOME"

# Run a command, print its title and seconds, keep its output. bash ignores -e in functions called so: join steps by &&.
step() {
  local title=$1 began=$SECONDS code=0 && shift
  "$@" > "$folder/${title// /_}.txt" 2>&1 || code=$?
  printf '%5d s  exit %d  %s\n' $((SECONDS - began)) "$code" "$title"
  [ "$code" = 0 ] || { tail -20 "$folder/${title// /_}.txt"; exit "$code"; }
}

install() {
  python3 -m venv environment &&
    environment/bin/python -m pip install --quiet -c "$constraints" torch &&
    environment/bin/python -m pip install --quiet -c "$constraints" "$wheel"
}
if [ -z "$python" ]; then step "install the wheel" install && python=$folder/environment/bin/python; fi
PATH=$(dirname "$python"):$PATH

step "quickstart" sweeper run quickstart
step "what it answers" sweeper results quickstart

python - <<'PY'
import csv, sklearn.datasets
data = sklearn.datasets.load_wine()
with open("wine.csv", "w", newline="") as file:
    rows = csv.writer(file)
    rows.writerow([*data.feature_names, "cultivar"])
    rows.writerows([*features, f"cultivar {target}"] for features, target in zip(data.data, data.target))
PY
step "own CSV: init" sweeper init wine.yaml --table wine.csv --target cultivar --epochs 9
step "own CSV: validate" sweeper validate wine.yaml
step "own CSV: run" sweeper run wine.yaml

# An own loop begins as a copy of the shipped example.
examples=$(python -c "import search_spaces; print(search_spaces.FOLDER / 'examples')")
sed 's/AdamW/SGD/' "$examples/own_loop.py" > mine.py
sed 's/own_loop:/mine:/' "$examples/own_loop.yaml" > mine.yaml
step "own loop: plan" sweeper plan mine.yaml
step "own loop: run" sweeper run mine.yaml --set samples=4 --set replicates=1

python - <<'PY'
import numpy
random = numpy.random.default_rng(0)
labels = random.integers(3, size=900)
numpy.savez("preds.npz", logits=4 * (numpy.eye(3)[labels] + random.normal(size=(900, 3))), labels=labels)
PY
step "import" sweeper import preds.npz

kill_and_resume() {
  sweeper run quickstart --name killed --set samples=6 --set which=[] --set replicates=1 &
  local driver=$!
  until compgen -G "results/killed/journal/*" > /dev/null; do sleep 0.2; done
  sleep 3
  kill -9 "$driver"
  wait "$driver" || true
  sweeper resume killed && sweeper status --audit killed
}
step "kill and resume" kill_and_resume

# Two nodes of Ray on this machine: the head, and a second raylet, ended by their own process ids.
two_nodes() {
  export RAY_raylet_start_wait_time_s=120  # 30 s are too few on a busy machine
  python - <<'PY'
import subprocess
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1)
try:
    command = ["sweeper", "run", "quickstart", "--name", "nodes", "--ray", cluster.address, "--set", "samples=4"]
    subprocess.run([*command, "--set", "which=[]", "--set", "replicates=1"], check=True)
finally:
    cluster.shutdown()
PY
}
step "two nodes of Ray" two_nodes

step "export" sweeper export quickstart model
predict() {
  python -c "
import sklearn.datasets, sweeper
digits = sklearn.datasets.load_digits()
predicted = sweeper.load_model('model').predict(digits.images[:50, None]).argmax(1).numpy()
print('right:', (predicted == digits.target[:50]).mean())"
}
step "use the export" predict
serve() {  # a page on a free port, or the sentence that names the missing extra
  if python -c "import starlette, uvicorn" 2> /dev/null; then
    sweeper serve --port 8339 &
    local server=$!
    for _ in $(seq 100); do curl -sf http://127.0.0.1:8339/ > page.html && break; sleep 0.3; done
    kill -INT "$server" && wait "$server" || true
    grep -q quickstart page.html
  else
    ! sweeper serve
  fi
}
step "serve" serve
step "add seeds" sweeper resume quickstart --set replicates=7
step "report" sweeper report quickstart
step "table for a paper" sweeper figure quickstart table --format latex
cite() { python -m pip show calibration_sweeper | grep -E "^(Name|Version|License)"; }
step "cite" cite
du -sh results
