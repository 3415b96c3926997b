"""`python -m sweeper` is `sweeper`."""

from sweeper.cli import main

main()
