"""The domains of a search space, one file each, and the tree that a space is parsed into.

    choice: [a, b]            one of the members, equally likely
    grid: [a, b]              every member in turn
    one_of: [{…}, {…}]        one of the branches, each a mapping with its own domains
    uniform: [low, high]      a real number, evenly
    loguniform: [low, high]   a real number, its logarithm evenly; 0 < low
    quniform: [low, high, step]   low, low + step, … high, each equally likely; real numbers
    randint: [low, high]      a whole number, both ends included

Only `choice`, `grid` and `randint` give integers; other intervals with whole ends do not. A hyperparameter of type
integer accepts `quniform` with whole steps, and refuses `uniform` and `loguniform`.

A domain is identified by its path in the file (`loss.one_of[1].gamma`), so hyperparameters of the same name in two
branches stay separate. A choice exists only if its branch was taken. `draw` turns choices into a configuration, whether
they are random or a searcher's.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")  # each domain registers itself
