"""What torchrun's command line tells of the rendezvous in which it waits."""

import pytest

from gpudiag.probe.job.agent import is_of_nodes, read_limit, read_options
from gpudiag.probe.job.proc import Process

TORCHRUN = ("/usr/bin/python3", "/opt/venv/bin/torchrun")
SCRIPT = ("train.py", "--nnodes", "9")
PLACES = {
    "c10d": (("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "77", "--rdzv-endpoint", "n1:29400"),
        ("c10d", "n1:29400", "77", (2, 2), None)),
    "underscores and equals": (("--nnodes=1:4", "--rdzv_backend=c10d", "--rdzv_endpoint=n1"),
        ("c10d", "n1:29400", "none", (1, 4), None)),
    "static": (("--nnodes", "4", "--node-rank", "2", "--master-addr", "10.0.0.1", "--master-port", "1234"),
        ("static", "10.0.0.1:1234", "none", (4, 4), 2)),
    "static without an address": (("--nnodes", "2",), ("static", "127.0.0.1:29500", "none", (2, 2), None)),
    "a switch before": (("--no-python", "--nnodes", "2"), ("static", "127.0.0.1:29500", "none", (2, 2),
        None)),
}  # fmt: skip


@pytest.mark.parametrize(("words", "place"), PLACES.values(), ids=PLACES.keys())
def test_the_place_of_the_rendezvous_is_read(words: tuple[str, ...], place: tuple[object, ...]) -> None:
    for launcher in (TORCHRUN, ("python", "-m", "torch.distributed.run")):
        read = read_options((*launcher, *words, *SCRIPT), {})
        assert read is not None
        assert (read.backend, read.endpoint, read.run_id, read.nodes, read.node_rank) == place


@pytest.mark.parametrize(
    "words", [(), ("--standalone", "--nnodes", "2"), ("--nnodes", "1"), ("--nnodes", "two")]
)
def test_a_job_of_one_node_has_no_rendezvous_of_nodes(words: tuple[str, ...]) -> None:
    assert read_options((*TORCHRUN, *words, *SCRIPT), {}) is None


def test_a_program_that_starts_torchrun_is_none() -> None:
    words = (
        "python",
        "/opt/venv/bin/gpudiag",
        "run",
        "--",
        "python",
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "2",
        "train.py",
    )
    assert not is_of_nodes(Process(7, 1, "S", 0.0, "python", words, python=True, environment={}))
    assert is_of_nodes(Process(8, 7, "S", 0.0, "python", words[4:], python=True, environment={}))


def test_variables_count_where_the_command_line_says_nothing() -> None:
    variables = {"PET_NNODES": "3", "PET_RDZV_ENDPOINT": "n7:5000", "PET_RDZV_BACKEND": "etcd-v2"}
    read = read_options((*TORCHRUN, "train.py"), variables)
    assert read is not None
    assert (read.backend, read.endpoint, read.nodes) == ("etcd-v2", "n7:5000", (3, 3))


@pytest.mark.parametrize(
    ("words", "is_connected", "limit"),
    [
        (("--rdzv-backend", "c10d"), True, ("join_timeout", 600.0)),
        (("--rdzv-backend", "c10d"), False, ("read_timeout", 60.0)),
        (("--rdzv-backend=c10d", "--rdzv-conf=join_timeout=1800,is_host=1"), True, ("join_timeout", 1800.0)),
        (("--rdzv-backend", "etcd-v2"), False, ("join_timeout", 600.0)),
        ((), False, ("timeout", 900.0)),
        (("--rdzv_conf", "join_timeout=5, timeout=1200"), True, ("timeout", 1200.0)),
        (("--rdzv-conf", "timeout=x"), True, ("timeout", 900.0)),
    ],
)
def test_when_torchrun_gives_up_is_its_own_default_or_of_its_command_line(
    words: tuple[str, ...], is_connected: bool, limit: tuple[str, float]
) -> None:
    read = read_options((*TORCHRUN, "--nnodes", "2", *words, *SCRIPT), {})
    assert read is not None
    assert read_limit(read, is_connected=is_connected) == limit
