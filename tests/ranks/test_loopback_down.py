"""A machine whose loopback interface is down: the host's fault, told before a rank is started, and what to
do.
"""

import shutil
import subprocess
import sys

import pytest

from tests.ranks.nccl_test_command import GPUDIAG, Completed, run

# A new network namespace has a loopback interface, and it is down.
WITHOUT_LOOPBACK = ("unshare", "--net")


@pytest.fixture(scope="module")
def namespace() -> tuple[str, ...]:
    """The words that start a command in a network namespace of its own.

    A loud skip where none can be made.
    """
    if shutil.which(WITHOUT_LOOPBACK[0]) is None:
        pytest.skip("a loopback interface that is down needs unshare(1) of util-linux")
    tried = subprocess.run(
        [*WITHOUT_LOOPBACK, "true"], capture_output=True, text=True, timeout=10, check=False
    )
    if tried.returncode != 0:
        pytest.skip(f"a loopback interface that is down needs a network namespace: {tried.stderr.strip()}")
    return WITHOUT_LOOPBACK


def faults_of(done: Completed) -> list[tuple[str, str, str]]:
    """Code, owner and kind of subject of every finding."""
    return [
        (finding["code"], finding["owner"], finding["subject"]["kind"])
        for finding in done.document()["findings"]
    ]


def test_it_is_one_finding_about_the_host_and_not_one_for_each_rank(namespace: tuple[str, ...]) -> None:
    done = run(*namespace, *GPUDIAG, "--nproc", "2", "--max-bytes", "8", "--json")
    assert done.status == 1
    assert faults_of(done) == [("network.loopback_down", "host", "host")]
    assert "ip link set lo up" in done.document()["findings"][0]["remedy"]
    assert done.document()["ranks"] == []  # none was started
    assert done.left_behind == ()


def test_a_training_tells_it_once_for_all_its_strategies(namespace: tuple[str, ...]) -> None:
    train = (sys.executable, "-m", "gpudiag", "train", "--strategy", "ddp,fsdp2", "--json")
    done = run(*namespace, *train)
    assert done.status == 1
    assert faults_of(done) == [("network.loopback_down", "host", "host")]
    assert [one["outcome"] for one in done.document()["strategies"]] == ["error", "error"]
    assert done.left_behind == ()


def test_with_it_up_the_same_run_passes(namespace: tuple[str, ...]) -> None:
    if shutil.which("ip") is None:
        pytest.skip("bringing the loopback interface up needs ip(8) of iproute2")
    bring_up = 'ip link set lo up && exec "$@"'
    done = run(*namespace, "sh", "-c", bring_up, "sh", *GPUDIAG, "--nproc", "2", "--max-bytes", "8", "--json")
    assert (done.status, faults_of(done)) == (0, [])
