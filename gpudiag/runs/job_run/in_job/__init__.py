"""What Python runs at its start in the processes of a job of `gpudiag run`: a folder that stands first in their PYTHONPATH."""
