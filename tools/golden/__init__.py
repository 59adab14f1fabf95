"""Records gpudiag's answers to all that the repository holds, and compares them with later ones."""
