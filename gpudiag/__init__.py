"""gpudiag: are the GPUs of this machine, or of this job's machines, fit to train on?"""

__version__ = "0.1.0"
