"""The machine around the GPUs, read from the kernel's files under one root."""
