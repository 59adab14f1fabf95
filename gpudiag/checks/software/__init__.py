"""Checks of the driver, the job's torch, and the variables that steer CUDA and NCCL."""
