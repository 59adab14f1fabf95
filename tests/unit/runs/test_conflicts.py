import pytest

from gpudiag.errors import UsageError
from gpudiag.model.device import GpuProcess
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.service.run_list import BusyGpusError, choose_gpus, refuse_busy
from tests.unit.model.nouns import NOT_SUPPORTED, make_device, make_snapshot

LOST = Missing(MissingReason.DEVICE_LOST)
TRAINING = GpuProcess(
    42, "compute", 2**30, True, "ann", "train.py", container_id=NOT_SUPPORTED, started_at=NOT_SUPPORTED
)
BUSY, IDLE = {"processes": (TRAINING,)}, {"processes": ()}
MACHINE = make_snapshot(
    make_device(0, **BUSY), make_device(1, **IDLE), make_device(2, responding=LOST), make_device(3, **IDLE)
)
ALL_BUSY = make_snapshot(make_device(0, **BUSY), make_device(1, **BUSY))


def test_without_a_choice_a_run_gets_the_gpus_that_nobody_uses():
    assert choose_gpus(MACHINE, (), force=False) == ("GPU-1", "GPU-3")
    assert choose_gpus(MACHINE, (), force=True) == ("GPU-0", "GPU-1", "GPU-3")
    assert choose_gpus(None, (), force=False) == ()


HIDDEN = make_snapshot(
    make_device(0, processes=(), utilization_percent=97, memory_used_bytes=0, memory_total_bytes=100),
    make_device(1, processes=(), utilization_percent=0, memory_used_bytes=80, memory_total_bytes=100),
    make_device(2, processes=(), utilization_percent=0, memory_used_bytes=1, memory_total_bytes=100),
)


def test_a_gpu_is_not_free_where_load_or_memory_says_otherwise():
    """A container without the host's processes lists none."""
    assert choose_gpus(HIDDEN, (), force=False) == ("GPU-2",)
    refuse_busy(HIDDEN, ("GPU-2",))
    for uuid, sign in (("GPU-0", "97 % load"), ("GPU-1", "80 % of its memory is used")):
        with pytest.raises(BusyGpusError) as refused:
            refuse_busy(HIDDEN, (uuid,))
        assert sign in refused.value.message


def test_where_all_are_in_use_the_run_is_refused():
    chosen = choose_gpus(ALL_BUSY, (), force=False)
    assert chosen == ("GPU-0", "GPU-1")
    with pytest.raises(BusyGpusError):
        refuse_busy(ALL_BUSY, chosen)


def test_gpus_are_named_by_uuid_or_index():
    assert choose_gpus(MACHINE, ("GPU-0", "3", "0"), force=False) == ("GPU-0", "GPU-3")
    with pytest.raises(UsageError):
        choose_gpus(MACHINE, ("7",), force=False)
