"""A process that answers at its pipe as a rank of torch does: it writes the dump that was asked for.

Started by a test.
"""

import os
import pickle
import sys
import time

RANK = int(os.environ["RANK"])
LATE_NANOSECONDS = 250_000_000 if RANK == 1 else 0


def entry(number: int) -> dict[str, object]:
    """A collective that has ended, in the form of torch 2.13."""
    return (
        {"record_id": number, "pg_id": 0, "process_group": ("0", "default_pg")}
        | {"collective_seq_id": number, "p2p_seq_id": 0, "op_id": number}
        | {"profiling_name": "nccl:all_reduce", "state": "completed", "retired": True, "is_p2p": False}
        | {"time_created_ns": 1_795_000_000_000_000_000 + number * 500_000_000 + LATE_NANOSECONDS}
        | {"time_discovered_started_ns": None}
        | {"time_discovered_completed_ns": 1_795_000_001_000_000_000 + number * 500_000_000}
        | {"input_sizes": [[8]], "output_sizes": [[8]], "input_dtypes": ["Float"]}
        | {"output_dtypes": ["Float"], "frames": []}
    )


def main() -> None:
    """Make the pipe, and answer until standard input ends."""
    pipe = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{RANK}.pipe"
    os.mkfifo(pipe)
    asked = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(0, False)
    print("ready", flush=True)
    while sys.stdin.buffer.read() != b"":
        if os.read(asked, 128):
            dump = {
                "version": "2.10",
                "comm_lib_version": "2.28.9",
                "entries": [entry(n) for n in range(1, 61)],
            }
            with open(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{RANK}", "wb") as file:
                pickle.dump(dump, file, protocol=2)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
