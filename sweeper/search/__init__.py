"""Which configuration comes next: drawn from the space, or suggested by a searcher that learns. Knows no trial."""
