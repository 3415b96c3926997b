"""Seeds of tests that draw: the same in every run of the default suite, another each time where that is asked for."""

import os
import random

VARIABLE = "TEST_SEED"
"""`random` (`make test-faults`) or a number in the environment; the number that a failed run printed repeats it."""

DEFAULT = 20_261_122


def drawn_seed() -> int:
    """Return the seed, and print it for a run that is to be repeated."""
    named = os.environ.get(VARIABLE, str(DEFAULT))
    seed = random.SystemRandom().getrandbits(32) if named == "random" else int(named)
    print(f"drawn with {VARIABLE}={seed}")
    return seed
