"""Ray Tune, class API: ASHA, two processes that take one trial after another (`reuse_actors`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.benchmarks.peers.plan import Plan, contender
from tests.benchmarks.peers.ray_tuner import kept, tune_plan


def trainable() -> type:
    """Return the trainable. Made here, so that `kept` needs no Ray."""
    from ray import tune

    class Trainable(tune.Trainable):
        def setup(self, config: dict[str, Any], folder: str = "") -> None:
            self._plan = Plan.read(Path(folder))
            self.reset_config(config)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            from tests.benchmarks.peers.training import Training

            self._training = Training(self._plan, new_config["index"])
            return True

        def step(self) -> dict[str, Any]:
            row = self._training.step()
            return {**row, "should_checkpoint": True} if self._training.saves else row

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            self._training.save(Path(checkpoint_dir))

        def load_checkpoint(self, checkpoint: str) -> None:
            self._training.load(Path(checkpoint))

    return Trainable


def run(folder: Path, resume: bool) -> None:
    """Train the plan of a folder."""
    tune_plan(trainable(), folder, resume, reuse_actors=True)


if __name__ == "__main__":
    contender(run, kept)
