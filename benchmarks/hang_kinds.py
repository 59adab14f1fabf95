"""The ways to hang, and the healthy jobs, of benchmarks/hang_matrix.py, with what must be reported."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A way to hang, and what must be reported: the code of the finding, and the line."""

    name: str
    codes: tuple[str, ...]
    line: str = ""  # the comment at the line; the name, where it is empty
    script: str = "kinds.py"
    of_one_rank: bool = True  # else no rank may be named


KINDS = (
    Kind("sigstop", ("hang.stopped",)),
    Kind("skipped", ("hang.other_collective",)),
    Kind("other_collective", ("hang.other_collective",)),
    Kind("other_size", ("hang.other_size",), "waits"),
    Kind("loader_deadlock", ("hang.loader",)),
    Kind("fifo", ("hang.file",)),
    Kind("lock", ("hang.lock",)),
    Kind("exception", ("hang.exception_swallowed",)),
    Kind("sleep", ("hang.sleep",)),
    Kind("python_loop", ("hang.loop",)),
    Kind("exit", ("hang.at_exit",)),
    Kind("evaluation", ("hang.works_alone", "hang.works_too_long")),
    Kind("d_state", ("hang.file", "hang.program")),
    Kind("frozen_disk", ("hang.file",)),
    Kind("dead", ("hang.rank_gone",)),
)
_SHAPES = (
    {"with_lock": "hang.lock", "http_server": "hang.network", "raw_socket": "hang.network"}
    | {"sqlite_lock": "hang.database", "queue_get": "hang.queue hang.lock"}
    | {"subprocess_run": "hang.program", "reads_input": "hang.queue hang.terminal", "flock": "hang.lock"}
    | {"deep_in_library": "hang.lock", "future_result": "hang.lock hang.queue", "process_pool": "hang.lock"}
    | {"event_loop": "hang.wait", "barrier_on_rank": "hang.other_collective", "monitored": "hang.sleep"}
    | {"object_list": "hang.sleep", "wrong_source": "hang.other_peer hang.other_collective"}
    | {"asynchronous": "hang.sleep", "asynchronous_skip": "hang.other_collective", "subgroup": "hang.sleep"}
    | {"store_wait": "hang.sleep", "receives": "hang.lock"}
    | {"gathers": "hang.other_peer hang.other_collective", "saves": "hang.file hang.checkpoint"}
    | {"breakpoint_left": "hang.debugger", "condition_wait": "hang.lock", "spin_wait": "hang.loop"}
    | {"joins_thread": "hang.lock", "swallowed_in_helper": "hang.exception_swallowed"}
    | {"stream": "hang.loader", "stream_spawn": "hang.loader", "fsdp": "hang.sleep"}
    | {"uneven_batches": "hang.other_collective", "uneven_ddp": "hang.other_collective"}
    | {"spawn": "hang.lock hang.queue", "process": "hang.lock hang.queue", "mpirun": "hang.lock hang.queue"}
)
SHAPES = tuple(
    Kind(
        name,
        tuple(codes.split()),
        "stream" if name == "stream_spawn" else "spawn" if name in ("process", "mpirun") else "",
        "shapes.py",
    )
    for name, codes in _SHAPES.items()
)
GROUPS = (
    Kind("one_line", ("hang.other_collective",), script="groups.py"),
    Kind("swallowed_layer", ("hang.exception_swallowed",), script="groups.py"),
    Kind("extra_call", ("hang.other_collective",), script="groups.py"),
    Kind("apart", ("hang.sleep",), script="groups.py"),
)
# What the worker that goes wrong does, by how it gets its requests (hang_jobs/engines.py).
_ENGINES = (
    {"pipes_lora": "hang.network", "pipes_killed": "hang.rank_gone"}
    | {"pipes_slow": "hang.works_alone", "forked_lock": "hang.lock"}
    | {"forkserver_start": "hang.file", "zmq_lora": "hang.network", "zmq_skip": "hang.queue"}
    | {"zmq_start": "hang.file", "ring_lock": "hang.lock", "ring_apart": "hang.network"}
    | {"broadcast_lora": "hang.network", "ray_lora": "hang.network", "ray_start": "hang.file"}
)
ENGINES = tuple(
    Kind(name, (code,), "" if code == "hang.rank_gone" else name.partition("_")[2], "engines.py")
    for name, code in _ENGINES.items()
)
HEALTHY_ENGINES = tuple(
    f"{transport}_{what}"
    for transport in ("pipes", "zmq", "ring", "broadcast", "ray")
    for what in ("idle", "steady")
)


# Waits that poll, and ranks that never came (hang_jobs/polls.py).
_POLLS = (
    {"soft_lock": "hang.lock", "file_lock": "hang.lock", "own_lock": "hang.lock"}
    | {"store_wait": "hang.never_joined hang.other_collective", "queue_timeout": "hang.queue hang.lock"}
    | {"event_wait": "hang.lock", "manager_queue": "hang.queue hang.network", "spin_flag": "hang.loop"}
    | {"poll_flag": "hang.loop hang.sleep", "answer": "hang.network", "stream_loader": "hang.loader"}
    | {"flag_ring": "hang.file", "all_loaders": "hang.loader", "missing_rank": "hang.never_joined"}
    | {"missing_node": "hang.never_joined", "static_node": "hang.never_joined"}
)
_OF_ALL = frozenset(("all_loaders", "missing_node", "static_node"))
POLLS = tuple(
    Kind(name, tuple(codes.split()), script="polls.py", of_one_rank=name not in _OF_ALL)
    for name, codes in _POLLS.items()
)
SETTLES = {
    **dict.fromkeys(
        ("evaluation", "pipes_slow", "ring_apart", "saves", "saves_ddp", "compiler_fifo", "compiler_lock"),
        12.0,
    ),
    "never_came": 45.0,
    "all_loaders": 24.0,
    "missing_rank": 60.0,
    "missing_node": 116.0,
    "static_node": 116.0,
    "flag_ring": 12.0,
}
NEEDED_WORDS = {
    "missing_node": ("rendezvous", "1 of 2 nodes"),
    "static_node": ("rendezvous",),
    "soft_lock": ("owner is gone",),
}
HEALTHY_POLLS = (
    *("healthy_slow_loader", "healthy_slow_rank", "healthy_download", "healthy_program", "healthy_consumer"),
    *("healthy_ring", "healthy_filling"),
)
_SHARED, _MADE = ("hang.threads_share_group",), ("hang.group_made_by_some",)
THREADS = (
    Kind("saves", _SHARED, script="threads.py", of_one_rank=False),
    Kind("saves_ddp", _SHARED, script="threads.py", of_one_rank=False),
    Kind("metrics", _SHARED, script="threads.py", of_one_rank=False),
    Kind("prefetch", _SHARED, script="threads.py", of_one_rank=False),
    Kind("joined_loop", ("hang.loop",), script="threads.py"),
    Kind("made_by_some", _MADE, script="threads.py", of_one_rank=False),
    Kind("mesh_of_members", _MADE, script="threads.py", of_one_rank=False),
    Kind("compiler_fifo", ("hang.compiler",), script="threads.py"),
    Kind("compiler_lock", ("hang.compiler",), script="threads.py"),
    Kind("killed", ("hang.rank_gone",), script="threads.py"),
    Kind("never_came", ("hang.never_joined",), "by_hand", script="threads.py"),
)
# `prepares` is reported while others wait (WARN), and is no hang.
HEALTHY_THREADS = ("saves_apart", "metrics_apart", "groups_of_all", "prepares", "joins_worker", "compiles")
BY_HAND = frozenset(("spawn", "process", "killed", "never_came"))
# What the compiler of a rank that asks for it does first, by the kind of job.
COMPILERS = {
    "compiler_fifo": "exec 3< {folder}/cache.fifo",
    "compiler_lock": 'exec flock {folder}/compiler.lock c++ "$@"',
}


@dataclass(frozen=True)
class GpuKind:
    """A job of tests/cuda_stand_in/jobs/training.py, and what must be reported of rank 1."""

    mode: str
    codes: tuple[str, ...]
    status: int
    words: tuple[str, ...]
    rank: int | None = 1  # whom the finding names, with four ranks; None: no one


# As the table of docs/hang.md: what is a hang, what is unknown, what is healthy.
GPU_KINDS = (
    GpuKind("spin", ("hang.unknown",), 3, ("for their GPUs", "training.py:", "long, or never ends"), None),
    GpuKind("skip", ("hang.other_collective",), 1, ("step 21", "step 20", "behind")),
    GpuKind("size", ("hang.other_size",), 1, ("float32 []", "float32 [1048576]")),
    GpuKind("other", ("hang.other_collective",), 1, ("Broadcast", "AllReduce")),
    GpuKind("order", ("hang.other_collective",), 1, ("in exchange",)),
    GpuKind("fifo", ("hang.file",), 1, ("the FIFO", "in load_batch")),
    GpuKind("pyloop", ("hang.loop",), 1, ("in tokenize", "while True")),
    GpuKind("stop", ("hang.stopped",), 1, ("SIGSTOP",)),
    GpuKind("loader", ("hang.loader",), 1, ("worker", "in Shards.read_shard")),
    GpuKind("uneven", ("hang.other_collective",), 1, ("barrier", "left the loop")),
    GpuKind("evaluate", ("hang.works_alone",), 0, ("evaluate", "300 s"), 0),
)
# longkernel: a look within a kernel of 10 s sees nothing move, and the answer is unknown; it is never a hang.
OWN_JOB = ("kernel30", "evaluate_all", "checkpoint", "compile", "replay")  # of jobs/healthy.py
HEALTHY_ON_GPUS = ("healthy", "slow", "longkernel", *OWN_JOB)
HEALTHY = ("train", "loader", "evaluation", "checkpoint", "compile", "ddp", "uneven_speed", "python")
