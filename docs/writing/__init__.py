"""Makes the reference's pages from what components declare of themselves."""
