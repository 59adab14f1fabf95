"""`gpudiag run`: somebody's job as it is, with an agent beside it that watches its ranks."""
