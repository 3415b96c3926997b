"""The same sweep through other tools: one script a contender, run by `tests.benchmarks.bench_peers`."""
