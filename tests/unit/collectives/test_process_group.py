"""What a rank says of its waits for a GPU; no GPU is needed to hear it."""

from dataclasses import dataclass, field

import pytest
import torch

from gpudiag.collectives.process_group import Announcement, ProcessGroup


@dataclass
class ReceivedCard:
    """A side channel that keeps what it is told."""

    announced: list = field(default_factory=list)
    left: list = field(default_factory=list)

    def pop_mismatch(self):
        return None

    def before_operation(self, sequence, op, dtype, elements, predicted_seconds=None):
        self.announced.append((op, dtype, elements, predicted_seconds))

    def after_operation(self, sequence, *, queued=False):
        self.left.append(queued)


@pytest.fixture
def group(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return ProcessGroup(0, 2, torch.device("cuda", 0), ReceivedCard())


def test_the_wait_for_a_burst_is_predicted_by_its_length_and_named_after_its_last_collective(group):
    for _ in range(4):
        group.run(lambda: None, Announcement("all_reduce", "float32", 7), 0.5)
    group.synchronize()
    group.synchronize()
    assert group.progress.announced[4] == ("end of all_reduce", "float32", 7, 2.0)
    assert group.progress.announced[5] == ("synchronize", "", 0, None)  # nothing was queued
    assert group.progress.left == [True] * 4 + [False] * 2


def test_numbers_that_ranks_agree_on_are_waited_for_where_it_is_announced(group, monkeypatch):
    tensor = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda values, dtype, device: tensor(values, dtype=dtype))
    monkeypatch.setattr("torch.distributed.broadcast", lambda tensor, source: None)
    assert group.broadcast_integers([3, 4]) == [3, 4]
    assert [op for op, *_ in group.progress.announced] == ["broadcast", "end of broadcast"]
