"""Output of other programs' benchmarks, read into tables: a reader for each program, and the facts beside the tables."""
