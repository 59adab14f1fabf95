"""The GPUs that a good run noted: read quickly, whole, and of this machine alone."""

import os

import pytest

from gpudiag.model.history import KnownGpu, KnownGpus
from gpudiag.model.reading import Missing
from gpudiag.store import known_gpus
from gpudiag.store import state_folder as state_module
from gpudiag.store.known_gpus import finish_known_gpus, known_gpus_file, start_known_gpus, write_known_gpus
from gpudiag.store.state_folder import own_machine_key
from tests.unit.model.nouns import TAKEN_AT

KNOWN = KnownGpus("a1", (KnownGpu("GPU-1", "00000000:19:00.0", "H100", TAKEN_AT),), None, False)


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUDIAG_STATE_DIR", str(tmp_path / "state"))


def read():
    """What is noted, as a listing reads it; a busy machine may need longer than a listing waits."""
    child = start_known_gpus()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return finish_known_gpus(child)


def test_what_a_good_run_noted_is_read_back():
    write_known_gpus(own_machine_key(), KNOWN)
    assert read() == KNOWN


@pytest.mark.parametrize("text", ["", "another\n{}\n", f"{own_machine_key()}\n[1", "\udcff"])
def test_what_is_not_this_machines_note_is_a_reason(text):
    path = known_gpus_file(own_machine_key())
    path.parent.mkdir(parents=True)
    path.write_text(text, errors="surrogateescape")
    assert isinstance(read(), Missing)


def test_nothing_noted_yet_is_a_reason():
    assert isinstance(read(), Missing)


@pytest.mark.usefixtures("forked")  # a new interpreter would not know of the other folders
def test_what_root_noted_is_read_by_every_user(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUDIAG_STATE_DIR", str(tmp_path / "system"))
    write_known_gpus(own_machine_key(), KNOWN)
    monkeypatch.delenv("GPUDIAG_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    monkeypatch.setattr(state_module, "SYSTEM_DIRECTORY", tmp_path / "own")  # where root's own would be
    monkeypatch.setattr(known_gpus, "SYSTEM_DIRECTORY", tmp_path / "system")
    assert read() == KNOWN
