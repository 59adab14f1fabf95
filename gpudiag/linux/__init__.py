"""What Linux shows of processes, read in one place."""
