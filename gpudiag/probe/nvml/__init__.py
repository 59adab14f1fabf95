"""NVML, asked in a guarded child, and its answer as typed values."""
