"""`python -m sweeper` is `sweeper`."""

from sweeper.cli.main import main

main()
