"""Training loops of other libraries as loops of a sweep; each needs its library, an optional extra."""
