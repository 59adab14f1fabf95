"""Walks every command over the branches for GPUs, on the stand-in for CUDA (tests/cuda_stand_in).

`steps.py` lists the commands, and how each should end; `__main__.py` runs them.
"""
