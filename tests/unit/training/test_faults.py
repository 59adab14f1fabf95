import pytest

from gpudiag.errors import UsageError
from gpudiag.ranks.inject import Fault, FaultKind
from gpudiag.training.faults import parse_training_fault
from gpudiag.training.training_job import TrainingFault


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nosync:3", TrainingFault("nosync", "nosync:3", None, 3)),
        ("sumgrad", TrainingFault("sumgrad", "sumgrad")),
        ("noset_epoch", TrainingFault("noset_epoch", "noset_epoch")),
        ("nan:1@3", TrainingFault("nan", "nan:1@3", 1, 3)),
        ("uneven", TrainingFault("uneven", "uneven")),
    ],
)
def test_faults_of_the_training(text: str, expected: TrainingFault) -> None:
    assert parse_training_fault(text, workers=2, steps=10) == expected


def test_faults_of_a_process_keep_their_text() -> None:
    fault = parse_training_fault("oom:1", workers=2, steps=10)
    assert isinstance(fault, Fault)
    assert (fault.kind, fault.rank, fault.specification) == (FaultKind.OOM, 1, "oom:1")
    slow = parse_training_fault("slow:1:50", workers=2, steps=10)
    assert isinstance(slow, Fault)
    assert slow.delay_seconds == 0.05


@pytest.mark.parametrize(
    "text",
    [
        "nosync",
        "nosync:99",
        "nan:1",
        "nan:2@3",
        "nan:@3",
        "sumgrad:1",
        "uneven:0",
        "kill:7@1",
        "kil:1@1",
        "",
        "oom",
    ],
)
def test_what_is_no_fault_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_training_fault(text, workers=2, steps=10)
    assert refused.value.hint
