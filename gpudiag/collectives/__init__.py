"""Collective operations on ranks: exact data, timing, and the definitions of nccl-tests."""
