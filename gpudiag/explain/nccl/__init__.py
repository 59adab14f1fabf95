"""What NCCL's own lines in a job's logs show."""
