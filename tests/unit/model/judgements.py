"""A judgement, as an example of its document."""

from gpudiag.checks.benchmarks.judge import judge_table
from gpudiag.model.benchmark import (
    JudgedTable,
    Judgement,
    MeasuredTable,
    MeasuredValue,
    Metric,
    Nics,
    OutputRead,
    Setup,
    TestResult,
)
from gpudiag.model.finding import Outcome


def make_judgement() -> Judgement:
    setup = Setup(
        "NVIDIA H100 80GB HBM3", 16, 2, Nics(8, 400.0), "2.26.2", "ring", ("NCCL_ALGO=Ring",), ("one node",)
    )
    table = MeasuredTable(
        "a.log", 3, "nccl-tests", "2.19.6", "all_reduce", Metric.BUSBW,
        (MeasuredValue(4.5e11, 8 << 30, 0, in_place=True),), setup,
        out_of_bounds=0, results=(TestResult("all_reduce", "fail", 3, "timeout"),),
    )  # fmt: skip
    judged: JudgedTable = judge_table(table)
    files = (
        OutputRead("a.log", 9, 1, ("NCCL 2.26.2",)),
        OutputRead("b.bin", 0, 0, refused="it is a binary file"),
    )
    return Judgement(Outcome.ERROR, files, (judged,))
