"""Faults and oddities of the network between four machines, each with what `gpudiag nccl-test` must report of it."""

from benchmarks.network_cases import healthy, running, splits
from benchmarks.network_cases.case import Case

CASES: tuple[Case, ...] = (*healthy.CASES, *splits.CASES, *running.CASES)
