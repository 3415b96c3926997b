"""What the figures of the report share: how a plot looks, and the rows that several of them draw."""
