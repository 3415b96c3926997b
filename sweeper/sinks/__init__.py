"""Where results land: projections of the journal, each of which can be made again from it."""
