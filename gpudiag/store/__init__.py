"""What this machine remembers: runs, baselines, its GPUs; on the disk or in PostgreSQL."""
