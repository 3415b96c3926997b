"""TensorBoard: event files with scalars and hyperparameters, one folder per trial, in `tensorboard/` of the sweep.

`tensorboard --logdir results/quickstart/tensorboard` shows them; needs the extra `tensorboard`. The address
`tensorboard:` means the sweep's own folder; `tensorboard:/mnt/runs` means a folder with one sub-folder per sweep, named
after the sweep and the first characters of its id, since sweeps in several folders can have the same name.

An event file can only grow, and does not record how much of the journal it contains. So each new process writes all
files again. Their content follows from the journal alone, so a page that has read half of an old file continues in the
new one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweeper.core.ids import trial_name
from sweeper.tracking.base import SWEEP_RUN, Known, RunUpdate, TrackedSweep, Tracker, number_of

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

FOLDER = "tensorboard"

#: One file per run. TensorBoard recognises event files by `tfevents` in their name.
FILE = "events.out.tfevents.0.sweeper"

#: Characters of a sweep's id in the name of its folder.
ID_LENGTH = 8

#: Statuses of the hparams plugin (`api_pb2.Status`): 1 is success, 2 failure, 3 running.
ENDED = {"completed": 1, "early_stopped": 1, "finished": 1, "failed": 2, "interrupted": 2, "stopped": 2}


class TensorBoardTracker(Tracker):
    """The event files of one sweep."""

    name = "TensorBoard"

    def __init__(self, address: str, sweep: TrackedSweep) -> None:
        """Prepare; nothing is written before `connect`."""
        self._place = address.partition(":")[2]
        self._folder = sweep.paths.root / FOLDER
        self._sweep = sweep
        self._begun: set[int] = set()
        self._statuses: dict[int, str] = {}

    def connect(self, sweep_id: str, generation: str) -> Known:
        """Remove the event files of an earlier process, so that all runs lack everything."""
        if self._place:
            self._folder = Path(self._place).expanduser() / f"{self._sweep.paths.name}-{sweep_id[:ID_LENGTH]}"
            for earlier in self._folder.parent.glob(f"*-{sweep_id[:ID_LENGTH]}"):
                if not self._folder.exists():  # the sweep was renamed
                    earlier.rename(self._folder)
        for file in self._folder.glob(f"*/{FILE}"):
            file.unlink()
            with contextlib.suppress(OSError):  # the folder has other files, which are the user's
                file.parent.rmdir()
        self._begun, self._statuses = set(), {}
        return Known()

    def write(self, updates: Iterable[RunUpdate]) -> None:
        """Append updates to the trials' files; the sweep's run is written only if it has points."""
        for update in updates:
            if update.place != SWEEP_RUN or update.points:
                self._append(update.place, self._events(update))

    def attach(self, answer: str, files: Iterable[tuple[Path, str | None]]) -> None:
        """Write the answer as the text of the sweep's run."""
        self._append(SWEEP_RUN, [_text("answer", answer)])

    def _append(self, place: int, events: Iterable[Event]) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        name = self._sweep.paths.name if place == SWEEP_RUN else trial_name(place)
        file = self._folder / name / FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as stream:
            writer = RecordWriter(stream)
            for event in events:
                writer.write(event.SerializeToString())

    def _events(self, update: RunUpdate) -> Iterator[Event]:
        from tensorboard.compat.proto.event_pb2 import Event

        if update.place not in self._begun:
            self._begun.add(update.place)
            yield Event(wall_time=update.start_time / 1000, file_version="brain.Event:2")
            if update.params:
                yield _hyperparameters(update)
        for point in update.points:
            yield _event(point.timestamp, tag=point.key, simple_value=point.value, step=point.step)
        if update.status in ENDED and self._statuses.get(update.place) != update.status and update.params:
            yield _end(update)
        self._statuses[update.place] = update.status

    @classmethod
    def fault(cls, address: str) -> tuple[str, str] | None:
        """Return whether the package is missing."""
        if importlib.util.find_spec("tensorboard") is None:
            return "TensorBoard is not installed", "pip install 'calibration-sweeper[tensorboard]'"
        return None

    @classmethod
    def beside_sweep(cls, address: str) -> str | None:
        """Without a folder, event files are in the sweep's own."""
        return "write tensorboard:/folder" if address.endswith(":") else None


def _event(milliseconds: int, step: int = 0, **value: Any) -> Event:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    summary = Summary(value=[Summary.Value(**value)])
    return Event(wall_time=milliseconds / 1000, step=step, summary=summary)


def _text(tag: str, text: str) -> Event:
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata

    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
    metadata = create_summary_metadata(display_name=tag, description="")
    return _event(int(1000 * time.time()), tag=tag, tensor=tensor, metadata=metadata)


def _hyperparameters(update: RunUpdate) -> Event:
    from google.protobuf.struct_pb2 import Value
    from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

    info = SessionStartInfo(group_name=update.name, start_time_secs=update.start_time / 1000)
    for key, text in update.params.items():
        number = number_of(text)
        info.hparams[key].CopyFrom(Value(string_value=text) if number is None else Value(number_value=number))
    return _plugin_event(update.start_time, SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=info))


def _end(update: RunUpdate) -> Event:
    from tensorboard.plugins.hparams.metadata import SESSION_END_INFO_TAG
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    at = update.end_time or update.start_time
    info: Mapping[str, Any] = {"status": ENDED[update.status], "end_time_secs": at / 1000}
    return _plugin_event(at, SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=SessionEndInfo(**info)))


def _plugin_event(milliseconds: int, tag: str, content: Any) -> Event:
    from tensorboard.plugins.hparams.metadata import create_summary_metadata

    return _event(milliseconds, tag=tag, metadata=create_summary_metadata(content))


TRACKER = TensorBoardTracker
