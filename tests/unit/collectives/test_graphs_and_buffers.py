"""Graphs and kinds of buffers: refused on processors, and what a torch lacks is a reason."""

import pytest
import torch

from gpudiag.collectives import graphs_and_buffers
from gpudiag.collectives.cases import plan_sweep
from gpudiag.collectives.graphs_and_buffers import Graphs, allocate
from gpudiag.collectives.results import Ways
from gpudiag.errors import UsageError
from gpudiag.model.plan import BUFFERS, PLAIN, NcclTestPlan
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from gpudiag.runs.collective_report import _lacks


@pytest.mark.parametrize("plan", [NcclTestPlan(graph=True), NcclTestPlan(buffers="symmetric")])
def test_gloo_refuses_both_in_one_sentence(plan: NcclTestPlan):
    with pytest.raises(UsageError, match=r"need.* GPUs, and these ranks run gloo"):
        plan_sweep(plan, "gloo", 2, 64)
    sweep = plan_sweep(plan, "nccl", 2, 64)
    assert (sweep.graph, sweep.buffers) == (plan.graph, plan.buffers)


@pytest.mark.parametrize("kind", BUFFERS)
def test_there_is_memory_whatever_this_torch_has(kind: str):
    memory, found = allocate(kind, 1024, torch.device("cpu"))
    assert len(memory) == 1024
    assert found == NOT_ASKED if kind == PLAIN else isinstance(found, Missing)


def test_what_cannot_be_captured_runs_as_it_is_and_is_not_tried_again():
    graphs, calls = Graphs(), []
    for _ in range(2):
        graphs.capture(lambda: calls.append(1))()
    assert calls == [1, 1]
    assert isinstance(graphs.used, Missing)
    assert graphs.used.detail


def test_what_one_rank_lacks_the_run_lacks():
    lack = Missing(MissingReason.NOT_SUPPORTED, "torch has none")
    assert _lacks(Ways(lack, NOT_ASKED))
    assert not _lacks(Ways("registered", True))
    assert not _lacks(Ways(NOT_ASKED, NOT_ASKED))


@pytest.mark.skipif(not hasattr(torch, "AcceleratorError"), reason="torch before 2.8")
def test_a_capture_that_cuda_refuses_is_no_fault_of_the_device(monkeypatch: pytest.MonkeyPatch):
    def refuse(code: int | None, words: str):
        error = torch.AcceleratorError(words)
        if code is not None:
            error.error_code = code  # type: ignore[attr-defined]

        def capture(_: object):
            raise error

        monkeypatch.setattr(graphs_and_buffers, "_capture", capture)
        return Graphs()

    for code, words in (
        (900, "CUDA error"),
        (901, "CUDA error"),
        (None, "operation not permitted when stream is capturing"),
    ):
        graphs = refuse(code, words)
        graphs.capture(lambda: None)()
        assert isinstance(graphs.used, Missing)
    for code, words in (
        (700, "CUDA error: an illegal memory access was encountered"),
        (None, "CUDA error: unspecified launch failure"),
    ):
        with pytest.raises(torch.AcceleratorError):
            refuse(code, words).capture(lambda: None)
