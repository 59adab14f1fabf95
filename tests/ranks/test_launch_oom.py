"""The real OOM killer, in a memory cgroup of the test's own, where it may make one."""

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ranks.launching import LIMIT_SECONDS, Launches

_LIMIT_BYTES = 200 << 20  # rank 1 asks for twice that


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup that may hold 200 MiB."""
    root, limit = Path("/sys/fs/cgroup"), "memory.max"
    if (root / "memory").is_dir():  # cgroup v1
        root, limit = root / "memory", "memory.limit_in_bytes"
    path = root / f"gpudiag-test-{uuid.uuid4().hex[:8]}"
    try:
        path.mkdir()
        (path / limit).write_text(str(_LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"cannot make a memory cgroup: {error}")
    yield path
    path.rmdir()


def test_a_rank_that_the_oom_killer_ends_is_told_so(launches: Launches, cgroup: Path) -> None:
    enter = ("sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec {sys.executable} "$@"', "sh")
    program = launches.start_program("exhaust_memory", command=enter)
    output, _ = program.communicate(timeout=LIMIT_SECONDS)
    (incident,) = json.loads(output.splitlines()[-1])["run"]["incidents"]
    evidence = {fact["name"]: fact["value"] for fact in incident["evidence"]}
    assert (incident["kind"], incident["rank"]) == ("died", 1)
    assert evidence["signal"] == "SIGKILL"
    assert evidence["oom_kills"] >= 1
    # Where the kernel log may be read.
    assert "Killed process" in evidence.get("oom_killer", "Killed process")
    launches.wait_until_gone()
