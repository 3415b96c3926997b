"""`make check-wheel`: install the wheel and everything it needs into an empty environment, and use it away from here.

    python -m tests.release.clean_environment dist [build/clean] [--installed]

The environment stays, for `make sbom` and `make notices` to look at; an older one is replaced, unless `--installed`
says that it holds the wheel already.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from tests.release.distribution import ROOT, clean_environment, timed

QUICK = ("--set", "samples=6", "--set", "replicates=1", "--set", "which=[]")

#: What a user of Python does away from any sweep: predictions of an overconfident classifier, calibrated in one call.
CALIBRATES = """
import numpy, sweeper
random = numpy.random.default_rng(0)
labels = random.integers(3, size=900)
logits = 4 * (numpy.eye(3)[labels] + random.normal(size=(900, 3)))
numpy.savez("preds.npz", logits=logits, labels=labels)
fitted = sweeper.Calibrator("temperature", inputs="logits").fit(logits[:600], labels[:600])
assert fitted.predict_proba(logits[600:]).max() < 0.99
"""
TAKES_HOME = """
import sweeper, sklearn.datasets
digits = sklearn.datasets.load_digits()
model = sweeper.load_model("model")
assert (model.predict(digits.images[:50, None]).argmax(1).numpy() == digits.target[:50]).mean() > 0.8
"""


def main() -> None:
    """Make the environment, run the commands, and print what each took."""
    dist, environment = (Path(place).resolve() for place in [*sys.argv[1:], "build/clean"][:2])
    (wheel,) = dist.glob("*.whl")
    installed = "--installed" in sys.argv
    if not installed:
        shutil.rmtree(environment, ignore_errors=True)
    python, program = environment / "bin" / "python", environment / "bin" / "sweeper"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    with tempfile.TemporaryDirectory(prefix="away-") as away:
        variables = clean_environment(Path(away) / "home")
        pip_home = clean_environment(Path.home())

        def run(*command: object, environment: dict[str, str] = variables) -> None:
            timed(*command, folder=away, environment=environment)

        if not installed:
            run(sys.executable, "-m", "venv", environment)
            run(*pip, "torch", environment=pip_home)
            run(*pip, wheel, environment=pip_home)
        run(python, "-m", "pip", "check")
        run(program, "--version")
        run(python, "-m", "sweeper", "--version")
        run(program, "doctor")
        run(program, "spaces")
        run(program, "plan", "quickstart")
        run(program, "run", "quickstart", *QUICK)
        run(program, "results", "quickstart")
        run(program, "status", "--audit", "quickstart")
        run(program, "recalibrate", "quickstart", "--method", "focal_temperature")
        run(program, "report", "quickstart")
        run(program, "export", "quickstart", "model")
        run(python, "-c", TAKES_HOME)
        run(python, "-c", CALIBRATES)
        run(program, "import", "preds.npz")
        run(program, "init", "tutorial", "--tutorial")
        run(program, "run", "claim_flipped_labels", "--rehearse", "--set", "replicates.count=1")
        assert (Path(away) / "results" / "quickstart" / "report.html").stat().st_size > 10_000
    print(f"{wheel.name} works in an environment of its own: {environment}")


if __name__ == "__main__":
    main()
