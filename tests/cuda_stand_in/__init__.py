"""A stand-in for CUDA and NCCL over a CPU build of torch; see README.md.

It proves calls, flow and words, never speed.
"""
