"""The state of the simulated NVML library: which call answers what."""
