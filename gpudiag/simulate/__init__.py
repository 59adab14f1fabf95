"""Simulated machines: an NVML library, a host tree and an nvidia-smi that a scenario describes."""
