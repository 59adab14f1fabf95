"""Other machines, by the API of their `gpudiag serve`: where they are, a request, what an answer holds."""
