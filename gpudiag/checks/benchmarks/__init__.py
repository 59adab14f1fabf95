"""What other programs' benchmarks printed, judged: `gpudiag judge`."""
