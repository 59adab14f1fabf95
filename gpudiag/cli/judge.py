"""`gpudiag judge`: whether speeds that other programs measured are right for that hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.options import WholeRange
from gpudiag.cli.printing import EXIT_STATUSES, print_noun
from gpudiag.cli.result_options import Wanted, result_options
from gpudiag.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from gpudiag.model.benchmark import Nics

_EXAMPLES = """\b
Examples:
  gpudiag judge all_reduce.log
  gpudiag judge --gpu h100 --nodes 2 --nics 8x400 all_reduce.log
  gpudiag judge nvbandwidth.json dcgmi-diag.txt nvidia-smi.txt
  all_reduce_perf -b 1G -e 8G -f 2 -g 8 | gpudiag judge -
Exit status: 0 PASS or WARN, 1 FAIL, 2 usage, 3 nothing that could be judged,
or a table that could not."""


def _gpu(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """NVML's name of the GPU that is meant."""
    if value is None:
        return None
    from gpudiag.model.nearest import did_you_mean
    from gpudiag.reference.expected_speeds import known_gpus

    known = known_gpus()
    name = known.get(" ".join(value.lower().replace("_", " ").split()))
    if name is not None:
        return name
    hint = (
        did_you_mean(value.lower(), known)
        or "such as: h100, h200, b200, gb200, a100, a100 pcie, rtx 4090, l40s"
    )
    raise UsageError(f"--gpu: no GPU called {value!r} is known", hint=hint)


def _nics(context: click.Context, parameter: click.Parameter, value: str | None) -> Nics | None:
    """The network cards of a node."""
    if value is None:
        return None
    from gpudiag.reference.expected_speeds import parse_nics

    nics = parse_nics(value)
    if nics is None:
        raise UsageError(f"--nics: {value!r} is no number of cards", hint="such as 8x400: eight of 400 Gb/s")
    return nics


@click.command("judge", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.argument("files", nargs=-1, required=True, metavar="FILE.. | FOLDER | -")
@click.option(
    "--gpu",
    callback=_gpu,
    metavar="NAME",
    help="The GPU, such as h100, `a100 pcie`, gb200; else by the files.",
)
@click.option("--gpus", type=WholeRange(1, 1_000_000), metavar="N", help="How many GPUs in all.")
@click.option("--nodes", type=WholeRange(1, 100_000), metavar="N", help="How many nodes they are in.")
@click.option(
    "--nics",
    callback=_nics,
    metavar="NxGBITS",
    help="The network cards of one node: 8x400 for eight of 400 Gb/s.",
)
@result_options(verbose="Show every table that is right, and what each limit is from.")
def judge(
    files: tuple[str, ...],
    gpu: str | None,
    gpus: int | None,
    nodes: int | None,
    nics: Nics | None,
    wanted: Wanted,
) -> ExitStatus:
    """Whether speeds are right that nccl-tests and other programs measured, and if not, why.

    Reads the output of nccl-tests, nvbandwidth, CUDA's samples, perftest, OSU, DeepSpeed's and other benches
    of torch, `dcgmi diag`, NCCL's Inspector and gpudiag, as text or JSON, alone or within a job's log. Each
    table is compared with published figures for just such machines; NCCL's log or nvidia-smi's text beside it
    shows what that is. It runs nothing, and needs no GPU.
    """
    from gpudiag.measured.recipe import judge_files
    from gpudiag.model.benchmark import Setup
    from gpudiag.model.reading import NOT_ASKED
    from gpudiag.render.judge_text import render_judgement

    given = Setup(
        gpu=gpu or NOT_ASKED, gpus=gpus or NOT_ASKED, nodes=nodes or NOT_ASKED, nics=nics or NOT_ASKED
    )
    judgement = judge_files(files, given)
    return print_noun(judgement, wanted, render_judgement, EXIT_STATUSES[judgement.outcome])
