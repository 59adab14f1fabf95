"""Two bare NCCL ranks on one GPU: does this NCCL allow it? Prints one JSON line.

{"works": true, "sum": 3.0} or {"works": false, "words": NCCL's error}, and the `version` of the library that
torch loads. NCCL 2.30 has NCCL_MULTI_RANK_GPU_ENABLE; versions before it refuse a GPU that is there twice.
"""

import json
import os
import tempfile
from ctypes import CDLL, byref, c_int
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

_TIMEOUT = timedelta(seconds=25)


def main() -> None:
    """Start both ranks on the first GPU, and return what came of it."""
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    answer: dict[str, bool | float | str | None]
    with tempfile.TemporaryDirectory() as folder:
        try:
            spawn(reduce_on_first_gpu, args=(folder,), nprocs=2)  # type: ignore[no-untyped-call]
            answer = {"works": True, "sum": float(Path(folder, "sum").read_text())}
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            answer = {"works": False, "words": words_of(str(error))}
    print(json.dumps(answer | {"version": loaded_version()}), flush=True)


def loaded_version() -> str | None:
    """The version that the NCCL library in this process reports; None where none is mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = [line.split(maxsplit=5)[-1] for line in lines if "libnccl" in line]
    if not paths:
        return None
    number = c_int()
    if CDLL(paths[0]).ncclGetVersion(byref(number)) != 0:
        return None
    major, rest = divmod(number.value, 10_000)  # since 2.9 (nccl.h: NCCL_VERSION)
    return f"{major}.{rest // 100}.{rest % 100}"


def reduce_on_first_gpu(rank: int, folder: str) -> None:
    """One all-reduce on the GPU that the other rank is on, too."""
    torch.cuda.set_device(0)
    dist.init_process_group(
        "nccl", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=_TIMEOUT
    )
    tensor = torch.full((1024,), float(rank + 1), device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    if rank == 0:
        Path(folder, "sum").write_text(str(tensor[0].item()))
    dist.destroy_process_group()


def words_of(error: str) -> str:
    """The lines of a worker's traceback with the reason; its last line where there is none."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    reasons = [line for line in lines if "uplicate GPU" in line or "Error" in line or "NCCL" in line]
    return " / ".join((reasons or lines)[-3:])[:500]


if __name__ == "__main__":
    main()
