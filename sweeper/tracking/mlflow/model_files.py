"""Write the files that make an exported model one of MLflow's: description, environment, loader and input example."""

from __future__ import annotations

import json
import platform
import shutil
from datetime import UTC, datetime
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import jinja2
import numpy as np
import yaml
from numpy.typing import NDArray

from trainables.datasets import raw_inputs
from trainables.datasets.raw_inputs import Numbers, Reader, TableRows, TokenizerIds

CODE, LOADER = "code", "calibrated_model"
#: Name under which `trainables.datasets.raw_inputs` is copied next to the loader.
READERS = "calibrated_inputs"
#: Files with one example sample, in the form that MLflow reads and in the form that a client sends.
EXAMPLE, SERVED_EXAMPLE = "input_example.json", "serving_input_example.json"


def write_mlflow_files(folder: Path, classes: int, reader: Reader, example: NDArray[np.generic]) -> None:
    """Add MLflow's description, environment, loader and input example to an exported model.

    Args:
        folder: folder with the program.
        classes: number of classes K.
        reader: reader of raw inputs.
        example: one sample of the program's input [1, …].
    """
    packages = ["mlflow", "numpy", "torch", *_NEEDED.get(reader.kind, ())]
    # A local version suffix such as `+cu128` is dropped, because package indexes do not have it.
    needed = [f"{name}=={version(name).partition('+')[0]}" for name in packages]
    given, python = reader.example(example), platform.python_version()
    text = resources.files("sweeper.tracking.mlflow").joinpath("MLmodel.yaml").read_text("utf-8")
    model = jinja2.Template(text, trim_blocks=True, keep_trailing_newline=True).render(
        loader=LOADER, code=CODE, python=python, mlflow=version("mlflow"), uuid=uuid4().hex,
        inputs=_signature(reader), outputs=_tensor("float32", [classes]),
        tensor=not isinstance(given, dict), example=EXAMPLE, served_example=SERVED_EXAMPLE,
        created=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}",
    )  # fmt: skip
    environment = {"python": python, "dependencies": ["-r requirements.txt"]}
    if isinstance(given, dict):
        given = {"columns": [*given], "data": [[*given.values()]]}
    served_example = {"dataframe_split" if isinstance(given, dict) else "inputs": given}
    (folder / EXAMPLE).write_text(json.dumps(given), encoding="utf-8")
    (folder / SERVED_EXAMPLE).write_text(json.dumps(served_example), encoding="utf-8")
    (folder / CODE).mkdir()
    # Our modules are copied under other names, so that they cannot clash with installed ones.
    shutil.copyfile(Path(__file__).with_name("served.py"), folder / CODE / f"{LOADER}.py")
    (folder / CODE / READERS).mkdir()
    for file in sorted(Path(raw_inputs.__file__).parent.glob("*.py")):
        source = file.read_text("utf-8").replace(raw_inputs.__name__, READERS)
        (folder / CODE / READERS / file.name).write_text(source, encoding="utf-8")
    (folder / "MLmodel").write_text(model, encoding="utf-8")
    (folder / "python_env.yaml").write_text(yaml.safe_dump(environment, sort_keys=False), encoding="utf-8")
    (folder / "requirements.txt").write_text("\n".join(needed) + "\n", encoding="utf-8")


#: Packages that a reader needs besides numpy.
_NEEDED = {TableRows.kind: ("pyarrow",), TokenizerIds.kind: ("transformers",)}


def _signature(reader: Reader) -> str:
    """Return MLflow's signature of the inputs: a tensor, or columns by name."""
    if isinstance(reader, Numbers):
        return _tensor(reader.dtype, [*reader.shape])
    if isinstance(reader, TableRows):
        # MLflow converts no int64 to double, and no missing value to a type: the reader checks values itself.
        columns = [(column.name, "any") for column in reader.columns]
    else:
        columns = [(reader.name, "string")]
    return json.dumps([{"type": kind, "name": name, "required": True} for name, kind in columns])


def _tensor(dtype: str, shape: list[int]) -> str:
    # −1 is MLflow's mark for the free dimension of a tensor's signature.
    return json.dumps([{"type": "tensor", "tensor-spec": {"dtype": dtype, "shape": [-1, *shape]}}])
