"""What Python runs first in the processes of a job of `gpudiag run`: a folder first in their PYTHONPATH."""
