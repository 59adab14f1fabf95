"""`gpudiag nccl-test`: verify and time collectives over ranks."""

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.options import json_option, local_rank_option, output_option, parse_names
from gpudiag.cli.printing import print_result, status_with_file, warn_unremembered
from gpudiag.cli.run_events import EventFile, ProgressLine, events_option, tell_all
from gpudiag.errors import ExitStatus, UsageError
from gpudiag.model.codec import dumps
from gpudiag.model.finding import Outcome
from gpudiag.model.plan import ALL, BACKENDS, DTYPES, OPERATIONS, REDUCTIONS, VERIFY_MODES, NcclTestPlan
from gpudiag.model.report import CollectiveReport
from gpudiag.units import parse_size_bytes

EXIT_STATUSES = {
    Outcome.PASS: ExitStatus.PASS,
    Outcome.WARN: ExitStatus.PASS,
    Outcome.FAIL: ExitStatus.FAIL,
    Outcome.ERROR: ExitStatus.ERROR,
}


def _names(known: tuple[str, ...]) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    """A callback that reads a comma-separated list of known names, or `all`."""

    def parse(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
        return parse_names(parameter.opts[0], text, known)

    return parse


def _dtypes(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    """The dtypes by name; `all` is left to the plan, which knows what the backend has."""
    return (ALL,) if text == ALL else parse_names(parameter.opts[0], text, DTYPES)


def _size(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """A size such as 64M in bytes; None (gpudiag decides) for `auto` or nothing."""
    if text in (None, "auto"):
        return None
    try:
        return parse_size_bytes(str(text))
    except UsageError as error:
        raise UsageError(f"{parameter.opts[0]}: {error.message}", hint=error.hint) from None


@click.command("nccl-test", context_settings=HELP_SETTINGS)
@click.option(
    "--backend",
    default="auto",
    metavar="NAME",
    help=f"{', '.join(BACKENDS)}; auto takes gloo only where there is no trace of a GPU, and then could not tell (3).",
)
@click.option("--nproc", type=int, metavar="N", help="Ranks.  [default: the usable GPUs, or 4 gloo ranks]")
@click.option(
    "--op",
    default="all_reduce",
    callback=_names(OPERATIONS),
    metavar="NAME,...",
    help=f"{', '.join(OPERATIONS)} or all.  [default: all_reduce]",
)
@click.option(
    "--dtype",
    default="float32",
    callback=_dtypes,
    metavar="NAME,...",
    help=f"{', '.join(DTYPES)} or all.  [default: float32]",
)
@click.option("--reduce", default="sum", metavar="NAME", help=f"{', '.join(REDUCTIONS)}.  [default: sum]")
@click.option("--min-bytes", default="8", callback=_size, metavar="SIZE", help="Smallest size.  [default: 8]")
@click.option(
    "--max-bytes",
    default="auto",
    callback=_size,
    metavar="SIZE",
    help="Largest size.  [default: 64M on CPU; on GPUs up to 8G within 40 % of their free memory]",
)
@click.option(
    "--step-factor", type=int, default=2, metavar="N", help="From one size to the next.  [default: 2]"
)
@click.option("--iterations", type=int, metavar="N", help="Timed, per size.  [default: 5 to 100, by time]")
@click.option("--warmup", type=int, metavar="N", help="Not timed, per size.  [default: 2 to 5, by time]")
@click.option("--unaligned", is_flag=True, help="Start buffers one element after an aligned address.")
@click.option(
    "--verify",
    default="every",
    metavar="WHEN",
    help=f"Which timed buffers: {', '.join(VERIFY_MODES)}.  [default: every]",
)
@click.option(
    "--inject",
    multiple=True,
    metavar="FAULT",
    help="Make a rank misbehave, at a timed iteration or a stage: kill:2@5, stop:1@init, skip:0@3, "
    "mismatch:1@3:size, oom:2@warmup, bitflip:1@3, slow:3:20.",
)
@click.option(
    "--timeout",
    type=float,
    metavar="SECONDS",
    help="For the whole run; what heals within is a warning.  [default: none]",
)
@click.option("--rendezvous-timeout", type=float, default=120.0, metavar="SECONDS", help="[default: 120]")
@click.option("--python", metavar="PATH", help="Your job's interpreter: its torch is run.")
@click.option("--rank", type=int, metavar="R", help="This process's rank, if your launcher sets no RANK.")
@click.option("--world-size", type=int, metavar="W", help="With --rank: how many there are.")
@click.option("--init-method", metavar="URL", help="With --rank: where they meet, as torch takes it.")
@local_rank_option()
@click.option("--store", metavar="URL", help="Where earlier results are: a file, sqlite:// or postgresql://.")
@click.option("--all-sizes", is_flag=True, help="Print every size, not about six.")
@json_option
@output_option
@events_option
def nccl_test(**options: Any) -> ExitStatus:
    """Verify and time collectives over ranks: GPUs with NCCL, or the CPU with gloo.

    Every timed buffer is compared bit for bit with what it must hold. A rank that dies, hangs or
    holds wrong data is named. Under torchrun each process runs one rank, and one prints the report.
    """
    from gpudiag.runs.nccl_test import RankPlace, run_nccl_test

    plan = plan_from(options)
    if options["store"] is not None:
        from gpudiag.store.database import parse_store_url

        parse_store_url(options["store"])
    place = RankPlace(options["rank"], options["world_size"], options["init_method"])
    with EventFile(options["events"]) as events, ProgressLine(sys.stderr) as progress:
        listener = tell_all(events.write, progress.show)
        outcome = run_nccl_test(plan, place, listener, python=options["python"], store=options["store"])
    kept = not outcome.reporter or _print(outcome.report, options)
    warn_unremembered(outcome.record())
    return status_with_file(EXIT_STATUSES[outcome.report.outcome], kept=kept)


def plan_from(options: dict[str, Any]) -> NcclTestPlan:
    """The plan that the options of this command ask for.

    Raises:
        UsageError: they ask for something that cannot be run.
    """
    return NcclTestPlan(
        backend=options["backend"],
        nproc=options["nproc"],
        op=options["op"],
        dtype=options["dtype"],
        reduce=options["reduce"],
        min_bytes=options["min_bytes"],
        max_bytes=options["max_bytes"],
        step_factor=options["step_factor"],
        iterations=options["iterations"],
        warmup=options["warmup"],
        unaligned=options["unaligned"],
        verify=options["verify"],
        inject=options["inject"],
        timeout_seconds=options["timeout"],
        rendezvous_timeout_seconds=options["rendezvous_timeout"],
    )


def _print(report: CollectiveReport, options: dict[str, Any]) -> bool:
    """Print the report as text or as its document; whether the document is in `--output` as well."""

    def document() -> str:
        return dumps(report) + "\n"

    def text() -> str:
        return _text(report, all_sizes=options["all_sizes"])

    return print_result(document if options["as_json"] else text, document, options["output"])


def _text(report: CollectiveReport, *, all_sizes: bool) -> str:
    from gpudiag.render.collective_text import render_collective
    from gpudiag.render.style import Style, wants_colour

    style = Style(wants_colour(sys.stdout.isatty(), dict(os.environ)))
    return render_collective(report, all_sizes=all_sizes, style=style)
