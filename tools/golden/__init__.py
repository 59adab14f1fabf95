"""Records what gpudiag answers to everything that the repository holds, and compares it with a later state of the code."""
