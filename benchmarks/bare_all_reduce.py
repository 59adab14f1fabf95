"""What people write instead of nccl-test: a loop around all_reduce, started by torchrun.

Arguments: a comma-separated list of sizes in bytes, warm-ups, iterations. Rank 0 prints one JSON
line per size: the p50 of its iterations and their mean, in seconds.
"""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    """Time all_reduce over the sizes, and print what rank 0 saw."""
    sizes, warmup, iterations = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo")
    for size in map(int, sizes):
        tensor = torch.ones(size // 4)
        for _ in range(warmup):
            dist.all_reduce(tensor)
        tensor.fill_(1.0)
        dist.barrier()
        times = []
        for _ in range(iterations):
            before = time.perf_counter()
            dist.all_reduce(tensor)
            times.append(time.perf_counter() - before)
        if dist.get_rank() == 0:
            result = {"size_bytes": size, "p50": statistics.median(times), "mean": statistics.fmean(times)}
            print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
