"""The stored history of this machine: runs, baselines, its GPUs; on disk or in PostgreSQL."""
