"""Read an exported model: check its description and its program, name all faults at once, and run no pickle."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from torch.export.pt2_archive import PT2ArchiveReader

from sweeper.core.errors import Fault, SweeperError
from sweeper.exporting.chosen import Description
from sweeper.exporting.folder import DESCRIPTION, FORMAT, PROGRAM
from sweeper.space.spec import structural_faults
from trainables.datasets.raw_inputs import READERS
from trainables.files.atomic import read_bytes, read_text

_EXPORT = "give a folder that `sweeper export NAME --to FOLDER` wrote, or export again"

Size = Annotated[int, Field(ge=1)]


class DamagedModelError(SweeperError):
    """An exported folder is damaged or was altered.

    Attributes:
        faults: every fault that was found; `path` is a key of `model.json`, or the name of another file.
    """

    def __init__(self, folder: Path, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__(
            "\n".join([f"the model in {folder} is damaged:", *(f"  {fault}" for fault in faults)]), _EXPORT
        )


class _Part(BaseModel):
    """A mapping in `model.json`. Keys for people, such as metrics, are not checked."""

    model_config = ConfigDict(strict=True, extra="ignore")


class InputPart(_Part):
    """The program's input: the shape of one sample, its type, and the reader of raw inputs that makes it."""

    model_config = ConfigDict(strict=True, extra="allow")

    kind: Literal["array", "table", "words", "tokenizer"]
    shape: list[Size]
    dtype: Literal["float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"]

    @model_validator(mode="after")
    def _describes_a_reader(self) -> InputPart:
        reader = READERS[self.kind]
        given = {field.name: getattr(self, field.name) for field in fields(reader) if hasattr(self, field.name)}
        try:
            TypeAdapter(reader).validate_python(given)
        except ValidationError as error:
            words = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise ValueError("; ".join(words)) from error
        return self


class OutputPart(_Part):
    """The program's output: the number of classes."""

    classes: Size


class PicturesPart(_Part):
    """How the data set decodes image files."""

    side: Size
    resized: Size | None


class SourcePart(_Part):
    """The sweep and the trial that the model comes from."""

    sweep: str
    trial: str


class ModelDescription(_Part):
    """The parts of `model.json` that a loaded model needs."""

    format: int
    input: InputPart
    output: OutputPart
    class_names: list[str]
    pictures: PicturesPart | None
    source: SourcePart
    program_sha256: str

    @field_validator("class_names")
    @classmethod
    def _one_a_class(cls, names: list[str], info: ValidationInfo) -> list[str]:
        output = info.data.get("output")
        if output is not None and len(names) != output.classes:
            raise ValueError(f"{len(names)} names, but output.classes = {output.classes}")
        return names


def read_model(folder: Path) -> tuple[Description, torch.nn.Module]:
    """Return the description and the program in a folder.

    Raises:
        DamagedModelError: a file is damaged or does not fit the others.
        SweeperError: the folder has no model, or one of another format.
    """
    try:
        text, program_file = read_text(folder / DESCRIPTION), folder / PROGRAM
        data = read_bytes(program_file, program_file.stat().st_size)
        values = json.loads(text)
    except FileNotFoundError as error:
        raise SweeperError(f"{folder} has no {Path(error.filename).name}", _EXPORT) from error
    except OSError as error:
        raise SweeperError(f"{error.filename or folder} cannot be read: {error.strerror or error}", _EXPORT) from error
    except (ValueError, RecursionError) as error:
        raise DamagedModelError(folder, [Fault(DESCRIPTION, f"it is no JSON: {error}")]) from error
    if isinstance(values, dict) and (known := values.get("format", FORMAT)) != FORMAT:
        raise SweeperError(
            f"the model in {folder} is of format {known!r}, not {FORMAT}", "load it with the release that wrote it"
        )
    try:
        description = ModelDescription.model_validate(values)
    except ValidationError as error:
        raise DamagedModelError(folder, structural_faults(error)) from error
    faults = [*_program_faults(data, description)]
    if faults:
        raise DamagedModelError(folder, faults)
    try:
        program = torch.export.load(io.BytesIO(data))
        faults = [*_signature_faults(program, description)]
        module = program.module()
    except MemoryError:
        raise
    except Exception as error:
        # torch raises any of a dozen types for a program that it cannot read.
        unreadable = f"torch {torch.__version__} cannot read it ({type(error).__name__}: {error})"
        raise DamagedModelError(folder, [Fault(PROGRAM, unreadable[:200])]) from error
    if faults:
        raise DamagedModelError(folder, faults)
    return values, module


#: The files of a program's archive that torch reads without unpickling. Others could be custom objects or compiled
#: libraries, which run code when they are loaded; an export has none.
_PLAIN = re.compile(
    r"(models/model\.json|data/sample_inputs/model\.pt|data/(weights|constants)/((weight|tensor)_\d+"
    r"|model_(weights|constants)_config\.json)|archive_(format|version)|byteorder|\.data/\w+|version)"
)


def _program_faults(data: bytes, description: ModelDescription) -> Iterator[Fault]:
    """Yield the faults that a program has before torch reads it."""
    if hashlib.sha256(data).hexdigest() != description.program_sha256:
        yield Fault(PROGRAM, "it is not the program of this export: its SHA-256 is not that in model.json")
    try:
        archive = PT2ArchiveReader(io.BytesIO(data))
        names = archive.get_file_names()
        pickled = [name for name in names if not _PLAIN.fullmatch(name)]
        for name in (name for name in names if name.endswith("_config.json")):
            entries = json.loads(archive.read_string(name))["config"]
            pickled += [f"{name}: {key}" for key, entry in entries.items() if entry["use_pickle"]]
        if pickled:
            yield Fault(PROGRAM, f"it contains {pickled[0]}, which could run code when it is loaded")
        # torch's loader unpickles sample inputs without this restriction if reading them with it fails.
        torch.load(io.BytesIO(archive.read_bytes("data/sample_inputs/model.pt")), weights_only=True)
    except MemoryError:
        raise
    except Exception as error:
        yield Fault(PROGRAM, f"its archive is damaged, or has more than tensors ({type(error).__name__})")


def _signature_faults(program: torch.export.ExportedProgram, description: ModelDescription) -> Iterator[Fault]:
    """Yield the differences between the program's input and output and those in the description."""
    signature = program.graph_signature
    output = [node for node in program.graph.output_node().all_input_nodes if node.name in signature.user_outputs]
    given = [node for node in program.graph.nodes if node.name in signature.user_inputs]
    for key, nodes, shape, dtype in (
        ("input", given, description.input.shape, description.input.dtype),
        ("output", output, [description.output.classes], "float32"),
    ):
        # Sizes can be symbols, which must not be compared as numbers.
        tensors = [(str(node.meta["val"].dtype), [*map(str, node.meta["val"].shape[1:])]) for node in nodes]
        if tensors != [(f"torch.{dtype}", [*map(str, shape)])]:
            found = ", ".join(f"{kind.removeprefix('torch.')} [N, {', '.join(sizes)}]" for kind, sizes in tensors)
            yield Fault(key, f"{dtype} [N, {', '.join(map(str, shape))}], but the program has {found or 'none'}")
