"""Output of other programs' benchmarks as tables: a reader for each program, and the facts beside."""
