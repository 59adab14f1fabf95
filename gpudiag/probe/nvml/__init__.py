"""NVML, asked in a guarded child, and its answer as typed values."""

LIBRARY = "libnvidia-ml.so.1"  # by the name that pynvml loads it by
