"""The HTTP service of gpudiag (it comes with `gpudiag serve`)."""
