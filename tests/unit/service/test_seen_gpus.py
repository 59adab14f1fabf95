"""Whose row, index and history is whose, when GPUs vanish, move up, come back, or are replaced."""

from dataclasses import replace
from datetime import timedelta

from gpudiag.model.reading import Missing, MissingReason
from gpudiag.service.seen_gpus import HOLDER_DAYS, SeenGpus
from gpudiag.store.seen_gpus import SeenFile
from tests.unit.model.nouns import TAKEN_AT, make_device, make_snapshot

ABSENT = Missing(MissingReason.SOURCE_ABSENT)
NO_DRIVER = Missing(MissingReason.SOURCE_ABSENT, "the driver is not loaded")
GPUS = [make_device(number) for number in range(4)]
WHOLE = make_snapshot(*GPUS)
UUIDS = [str(device.id.uuid) for device in GPUS]


def at_index(device, index):
    return replace(device, id=replace(device.id, nvml_index=index))


# GPU 1 has vanished, and those behind it have moved up.
MOVED = make_snapshot(GPUS[0], at_index(GPUS[2], 1), at_index(GPUS[3], 2))


def seen_by(*snapshots):
    seen = SeenGpus()
    for snapshot in snapshots:
        seen.note(snapshot)
    return seen


def rows(seen, snapshot):
    return [str(row.id.uuid) for row in seen.rows_of_missing(snapshot)]


def test_a_gpu_that_vanished_has_its_row_and_index_and_the_others_are_elsewhere():
    seen = seen_by(WHOLE, MOVED)
    (row,) = seen.rows_of_missing(MOVED)
    assert row.id.uuid == UUIDS[1]
    assert isinstance(row.id.nvml_index, Missing), "that index is another's"
    assert seen.last_indices()[UUIDS[1]] == 1
    assert seen.elsewhere(MOVED) == {UUIDS[2], UUIDS[3]}
    seen.note(WHOLE)
    assert seen.elsewhere(WHOLE) == frozenset()
    assert rows(seen, WHOLE) == []


def test_a_gpu_in_anothers_slot_ends_its_row_and_does_not_take_over_its_index():
    new = replace(GPUS[1], id=replace(GPUS[1].id, uuid="GPU-new"))
    swapped = make_snapshot(GPUS[0], new, *GPUS[2:])
    seen = seen_by(WHOLE, swapped)
    assert rows(seen, swapped) == []
    assert UUIDS[1] not in {gpu.uuid for gpu in seen.known(ABSENT).gpus}
    assert seen.elsewhere(swapped) == {"GPU-new"}


def remember(folder, machine="a1", memory=None):
    """A file as a service leaves it, read by the next one."""
    if memory is not None:
        before = SeenFile(folder, machine)
        before.save(memory)
        before.close()
        assert before.warning == ""
    file = SeenFile(folder, machine)
    file.close()
    assert file.is_read
    return file.loaded


def test_the_next_service_knows_them_also_without_a_driver(tmp_path):
    memory = remember(tmp_path, memory=seen_by(WHOLE, MOVED).memory())
    assert memory.last_at == TAKEN_AT
    empty = make_snapshot(driver_version=NO_DRIVER)
    later = SeenGpus()
    later.recall(memory, empty)
    assert sorted(rows(later, empty)) == sorted(UUIDS)
    assert later.last_indices()[UUIDS[1]] == 1
    assert later.last_seen() == dict.fromkeys(UUIDS, TAKEN_AT), "since when each is missed"
    assert {row.responding.reason for row in later.rows_of_missing(empty)} == {MissingReason.SOURCE_ABSENT}
    later.note(MOVED)
    assert later.elsewhere(MOVED) == {UUIDS[2], UUIDS[3]}, "the index is still the missing one's"
    assert rows(later, MOVED) == [UUIDS[1]]
    assert remember(tmp_path, machine="b2") is None, (
        "each machine that shares the folder has a file of its own"
    )


def test_another_machine_another_share_and_an_old_holder_are_not_taken_for_this_one():
    memory = seen_by(WHOLE).memory()
    other = SeenGpus()
    other.recall(replace(memory, known=replace(memory.known, host="b2")), MOVED)
    other.recall(replace(memory, known=replace(memory.known, share=2)), MOVED)
    assert rows(other, MOVED) == []
    late = replace(MOVED, taken_at=TAKEN_AT + HOLDER_DAYS + timedelta(days=1))
    old = SeenGpus()
    old.recall(memory, late)
    old.note(late)
    assert old.elsewhere(late) == frozenset()


MOVED_AWAY = make_snapshot(
    *(
        replace(
            device, id=replace(device.id, uuid=f"GPU-of-another-{place}", bus_id=f"00000000:0{place}:1c.0")
        )
        for place, device in enumerate(GPUS)
    )
)


def test_a_virtual_machine_on_another_host_misses_no_gpu(tmp_path):
    """After a move it has other GPUs at other places: github.com/NVIDIA/k8s-device-plugin/issues/373."""
    memory = remember(tmp_path, memory=seen_by(WHOLE).memory())
    later = SeenGpus()
    later.recall(memory, MOVED_AWAY)
    later.note(MOVED_AWAY)
    assert rows(later, MOVED_AWAY) == []
    assert {gpu.uuid for gpu in later.known(ABSENT).gpus} == {device.id.uuid for device in MOVED_AWAY.devices}


def test_a_good_run_brings_the_gpus_that_it_had_and_takes_away_those_that_it_did_without():
    seen = SeenGpus()
    seen.note(MOVED)
    seen.note_good(WHOLE, MOVED)
    assert rows(seen, MOVED) == [UUIDS[1]]
    accepted = replace(MOVED, taken_at=TAKEN_AT + timedelta(hours=1))
    seen = seen_by(WHOLE, MOVED)
    seen.note_good(accepted, MOVED)
    assert rows(seen, MOVED) == []


def test_a_file_that_cannot_be_read_is_none(tmp_path):
    assert remember(tmp_path) is None
    assert remember(tmp_path, memory=seen_by(WHOLE).memory()) is not None
    (file,) = tmp_path.glob("gpus-*.json")
    file.write_text("a1\n{")
    assert remember(tmp_path) is None
    file.write_bytes(b"\xff\xfe")
    assert remember(tmp_path) is None
