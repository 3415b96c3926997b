"""`python -m tests.faults.short_segments …` is `sweeper …` with five records a segment: small sweeps have many."""

from sweeper.api.main import main
from sweeper.journal import segments

if __name__ == "__main__":
    segments.SEALED = 5
    main()
