from tests.trainables.training.fixtures import double, one_thread

__all__ = ["double", "one_thread"]
