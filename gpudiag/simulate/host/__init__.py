"""The files of a simulated machine, in the kernel's own formats."""
