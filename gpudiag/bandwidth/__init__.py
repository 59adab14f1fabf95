"""Active tests on ranks: memory, host and peer copies, matrix products, repeatability, patterns, load."""
