"""The commands, a file a group of them. Nothing else prints, and nothing else of this package imports them."""
