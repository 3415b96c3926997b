"""Building what is released, from a copy of the project, and installing it away from the checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("trainables", "sweeper", "search_spaces", "deploy", "tests", ".ci", ".github")


def source_files() -> list[str]:
    """Return the paths of the project's files: what git does not ignore or, without git, what is below its folders."""
    if not (ROOT / ".git").exists():
        found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
        return sorted(path.relative_to(ROOT).as_posix() for path in [*found, *ROOT.glob("*")] if path.is_file())
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    return sorted({path for path in os.fsdecode(listed).split("\0") if path and (ROOT / path).is_file()})


def copy_of_the_sources(folder: Path) -> Path:
    """Copy the project: a build leaves its own beside them, and takes up what lies about."""
    for path in source_files():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, target)
    return folder


def build(sources: Path, out: Path, kind: str) -> Path:
    """Build a `wheel` or `sdist` with this environment's setuptools and return its path; needs no network."""
    program = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(out)!r}))"
    out.mkdir(parents=True, exist_ok=True)
    done = subprocess.run([sys.executable, "-c", program], cwd=sources, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / done.stdout.splitlines()[-1]


def install(wheel: Path, environment: Path) -> Path:
    """Make an environment with the wheel alone, borrowing this one's other packages; return its `bin`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=120)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=240)
    packages = next((environment / "lib").glob("python*/site-packages"))
    # A folder that a .pth file names has its own .pth files passed over, so the checkout stays out of reach.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin"


def clean_environment(home: Path) -> dict[str, str]:
    """Return environment variables that lead to no checkout, with an empty home."""
    home.mkdir(parents=True, exist_ok=True)
    kept = {"PATH", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "OMP_NUM_THREADS"}
    return {name: value for name, value in os.environ.items() if name in kept} | {"HOME": str(home)}


def timed(*command: object, folder: str | Path, environment: dict[str, str]) -> None:
    """Run a command and print what it took, and pytest's last line. Raises SystemExit with a failure's output."""
    began, words = time.perf_counter(), [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=3600)
    print(f"{time.perf_counter() - began:6.1f} s  exit {done.returncode}  {' '.join(words)}", flush=True)
    if done.returncode:
        raise SystemExit(done.stdout[-4000:] + done.stderr[-4000:])
    if words[-1] == "-q":
        print(f"         {done.stdout.splitlines()[-1]}", flush=True)
