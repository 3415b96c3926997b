"""Environment variables for Ray, set before its import because it reads some only then."""

from __future__ import annotations

import os
import secrets

TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the journal has every result; files a trial would only cost time
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # snapshots of all trials serve `Tuner.restore`, which is never used
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # reports carry their metrics in a list
    "TUNE_RESULT_BUFFER_LENGTH": "1",  # a decision must reach the trial before its next step
    "RAY_AIR_NEW_OUTPUT": "0",  # the progress shown is the sweep's own
    "RAY_USAGE_STATS_ENABLED": "0",  # a sweep sends no usage statistics
}


def prepare(address: str | None) -> None:
    """Set Ray's environment for a sweep on the cluster at `address`, or on one started here for `None`.

    Local clusters start with token authentication, and Ray would write a token into the home folder; one that
    lives as long as this process is made instead. A token that is set already is kept, for it belongs to a cluster.
    """
    os.environ.update(TUNE_SETTINGS)
    if address is None and "RAY_AUTH_TOKEN" not in os.environ and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
