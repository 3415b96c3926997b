"""Fuzzing: whatever bytes a search space or a results folder holds, the answer is a plan or rows, or a clear error."""
