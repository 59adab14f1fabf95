"""What to do about an exception of a user's script: advice that fits it, and none about GPUs where none had a part."""

import re

_SHARED_MEMORY = re.compile(
    r"out of shared memory|shared memory \(?shm|killed by signal: Bus error|/torch_\d+.*No space|No space.*/torch_\d+"
    r"|unable to (allocate|open|write).*torch_",
    re.IGNORECASE | re.DOTALL,
)
_SHARED_MEMORY_REMEDY = (
    "Give the container more shared memory (`docker run --ipc=host` or `--shm-size 16g`; in Kubernetes an emptyDir of "
    "medium Memory at /dev/shm), or use fewer data loader workers; `df -h /dev/shm` shows it."
)
_OWN_REMEDY = "It is the script's own: look at that line, and at what it was given on that rank."
_BY_TEXT = (
    (_SHARED_MEMORY, _SHARED_MEMORY_REMEDY),
    (
        re.compile(r"Received data size|op\.preamble\.length|Detected mismatch between collectives"),
        "Make every rank call the same collectives in the same order, with tensors of the same size and dtype.",
    ),
    (
        re.compile(r"DataLoader worker .* (exited|is killed)", re.DOTALL),
        "The worker's own error stands above it. Killed: look at `dmesg -T | tail -50` for the OOM killer, and try "
        "`num_workers=0`.",
    ),
    (
        re.compile(r"OutOfMemoryError|CUDA out of memory"),
        "Use a smaller batch, and see who else holds memory of that GPU: `gpudiag list`.",
    ),
    (
        re.compile(r"NCCL|ncclSystemError|ncclInternalError"),
        "Run `gpudiag nccl-test` with as many ranks, and read NCCL's own lines with NCCL_DEBUG=WARN.",
    ),
    (
        re.compile(r"CUDA|cuDNN|CUBLAS|cublas|AcceleratorError"),
        "Run `gpudiag list --sources all` on that host, and give `gpudiag explain` what the script printed.",
    ),
    (
        re.compile(r"No space left on device|ENOSPC"),
        "Make room where the script writes: `df -h` and `df -i` show which file system is full.",
    ),
    (
        re.compile(
            r"Connection (refused|reset|closed)|timed out|Timeout|DistNetworkError|DistStoreError|gloo"
        ),
        "See whether all ranks ran until then, and whether their hosts reach each other: `gpudiag nccl-test`.",
    ),
)
_BY_TYPE = (
    (
        ("ModuleNotFoundError", "ImportError"),
        "Install it for the ranks' interpreter, or name your job's own by `--python`.",
    ),
    (
        ("FileNotFoundError", "PermissionError", "IsADirectoryError", "NotADirectoryError"),
        "See that the path is there, on that host, and that the job's user may open it.",
    ),
    (
        (
            "KeyError", "IndexError", "AttributeError", "NameError", "UnboundLocalError", "TypeError",
            "ZeroDivisionError", "AssertionError", "RecursionError", "NotImplementedError", "SyntaxError",
        ),
        _OWN_REMEDY,
    ),
    (("MemoryError",), "See how much memory the job may use: `free -g`, and the limit of its cgroup."),
)  # fmt: skip


def advise(exception: str, text: str) -> str:
    """What to do about an exception of that type with that text, or about that line of output."""
    for types, remedy in _BY_TYPE:
        if exception in types:
            return remedy
    whole = f"{exception}: {text}"
    return next((remedy for pattern, remedy in _BY_TEXT if pattern.search(whole)), _OWN_REMEDY)


def is_about_shared_memory(text: str) -> bool:
    """Whether an exception's text is what a full /dev/shm makes of a data loader."""
    return bool(_SHARED_MEMORY.search(text))
