"""Other machines, by the API of their `gpudiag serve`: where they are, one bounded request, and what an answer holds."""
