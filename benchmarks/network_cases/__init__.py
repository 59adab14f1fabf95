"""Faults and oddities of the network between four machines, each with what `gpudiag nccl-test` must report of it."""

from benchmarks.network_cases import addresses, firewalls, healthy, splits
from benchmarks.network_cases.case import Case

CASES: tuple[Case, ...] = (*healthy.CASES, *splits.CASES, *addresses.CASES, *firewalls.CASES)
