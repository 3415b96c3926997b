"""One network trained by several processes, its ranks, each on its share of every batch, as one process would train it.

Every rank runs the same steps in step with the others. Rank 0 leads: it alone reports, measures and writes, and tells
the others what comes next (`orders`). How ranks find each other and end is the business of `trainables.worker`.
"""
