"""The commands as functions, for notebooks and scripts: `sweeper.run(…)`, `sweeper.status(…)`."""
