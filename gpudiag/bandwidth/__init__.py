"""Active tests on ranks: memory, host-device and peer copies, matrix products, repeatability, patterns, load."""
