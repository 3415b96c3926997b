"""Object stores: Amazon S3, Google Cloud Storage and Azure through one client, one file each."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")  # each kind of store registers itself
