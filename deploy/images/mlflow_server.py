"""Start MLflow's server from the environment, so that the database's password is in no command line.

POSTGRES_HOST, POSTGRES_DB, POSTGRES_USER and POSTGRES_PASSWORD name the database; ARTIFACTS the store of artifacts,
e.g. s3://mlflow; ALLOWED_HOSTS the names by which clients may call the server.
"""

from __future__ import annotations

import os
import sys
from urllib.parse import quote


def main() -> None:
    """Become the server."""
    values = {name: os.environ.get(name, "") for name in ("HOST", "DB", "USER", "PASSWORD")}
    values = {name: os.environ.get(f"POSTGRES_{name}", "") for name in values}
    missing = [f"POSTGRES_{name}" for name, value in values.items() if not value]
    missing += [name for name in ("ARTIFACTS",) if not os.environ.get(name)]
    if missing:
        sys.exit(f"not set: {', '.join(missing)}")
    login = f"{quote(values['USER'], safe='')}:{quote(values['PASSWORD'], safe='')}"
    # MLflow reads these where the options are absent.
    os.environ["MLFLOW_BACKEND_STORE_URI"] = f"postgresql+psycopg://{login}@{values['HOST']}/{values['DB']}"
    os.environ["MLFLOW_ARTIFACTS_DESTINATION"] = os.environ["ARTIFACTS"]
    os.environ["MLFLOW_SERVE_ARTIFACTS"] = "true"
    command = ["mlflow", "server", "--host", "0.0.0.0", "--port", "5000", "--workers", "2"]
    # On busy cores a worker needs longer than the five seconds after which it would be replaced, again and again.
    command += ["--uvicorn-opts", "--timeout-worker-healthcheck 120"]
    hosts = os.environ.get("ALLOWED_HOSTS")
    if hosts:
        command += ["--allowed-hosts", hosts]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
