"""`gpudiag train`: train a little under each strategy, and prove that it is the maths of one process."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.launch import emit_job, emit_options, launch_options, read_place, report_ranks
from gpudiag.cli.options import Seconds, is_given, local_rank_flag, refuse_given
from gpudiag.cli.plan_options import plan_from, plan_options
from gpudiag.cli.printing import print_noun, warn
from gpudiag.cli.result_options import Wanted, result_options
from gpudiag.cli.run_events import EventFile, ProgressLine, events_option, join_listeners
from gpudiag.errors import ExitStatus, UsageError
from gpudiag.model.training import TrainingPlan, TrainingReport

if TYPE_CHECKING:
    from gpudiag.render.style import Style

_FORMATS = ("text", "json", "markdown")
# Flags refused for a script, which decides these itself, and the only flags that advice uses.
_NOT_FOR_SCRIPTS = ("strategy", "workload", "steps", "batch_size", "dtype", "optimizer", "seed")
_FOR_ADVICE = (
    *("advise", "parameters", "nodes", "dtype", "optimizer", "no_master_weights"),
    *("form", "as_json", "output", "verbose"),
)
FRAMEWORKS = ("torch", "deepspeed", "horovod", "accelerate", "tensorflow")


@click.command("train", context_settings=HELP_SETTINGS)
@plan_options(TrainingPlan)
@click.option(
    "--script",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Run and watch your own training script on the ranks; its arguments go after --.",
)
@click.option(
    "--hang-after",
    type=Seconds(),
    default=60.0,
    metavar="SECONDS",
    help=(
        "With --script, end it if no rank moves for SECONDS; 30 times as long if one works and"
        " others wait for it.  [default: 60]"
    ),
)
@click.option(
    "--python",
    multiple=True,
    metavar="PATH",
    help="Run the ranks in your job's interpreter; tensorflow=PATH for one framework alone.",
)
@click.option("--advise", is_flag=True, help="Name the strategy that suits this machine; run nothing.")
@click.option("--parameters", metavar="N", help="With --advise: size of your model, such as 350M or 7B.")
@click.option(
    "--no-master-weights", is_flag=True, help="With --advise: bfloat16 alone, without float32 weights."
)
@emit_options("With --emit or --advise: how many machines.  [default for advice: the job's]")
@launch_options(hidden_local_rank=False)
@result_options(_FORMATS, verbose="Every finding whole.")
@events_option
@click.argument("script_arguments", nargs=-1, type=click.UNPROCESSED)
def train(wanted: Wanted, **options: Any) -> ExitStatus:
    """Train a little under each strategy, and prove that the results match a single process.

    Gradients, parameters, losses, shards, checkpoints: everything is compared. Then it is timed.
    Under a launcher each process runs one rank, and one prints the report.
    """
    _refuse_contradictions(options)
    if options["advise"]:
        from gpudiag.runs.advise import advise_strategy

        given = {name: options[name] for name in ("dtype", "optimizer") if is_given(name)}
        report = advise_strategy(
            options["parameters"],
            nodes=options["nodes"],
            master_weights=not options["no_master_weights"],
            **given,
        )
        return print_noun(report, wanted, partial(_render, form=wanted.form))
    plan = plan_from(TrainingPlan, options)
    if emit_job(options, per_machine=False):
        return ExitStatus.PASS
    if options["script"] is not None:
        return _run_script(plan, wanted, options)
    return _run_strategies(plan, wanted, options)


def _run_strategies(plan: TrainingPlan, wanted: Wanted, options: dict[str, Any]) -> ExitStatus:
    from gpudiag.runs.train import run_training

    place = read_place(options)
    pythons = parse_pythons(options["python"])
    with EventFile(options["events"]) as events, ProgressLine(sys.stderr, plan.strategy) as progress:
        run = run_training(
            plan,
            place,
            pythons=pythons,
            listener=join_listeners(events.write, progress.show),
            notice=progress.warn,
        )
    return report_ranks(run, place, wanted, partial(_render, form=wanted.form))


def _run_script(plan: TrainingPlan, wanted: Wanted, options: dict[str, Any]) -> ExitStatus:
    from gpudiag.runs.train_script import ScriptPlan, run_script

    script = ScriptPlan(
        path=options["script"],
        # A launcher that passes the local rank as a flag puts it before the script's own arguments.
        arguments=(*local_rank_flag(click.get_current_context()), *options["script_arguments"]),
        nproc=plan.nproc,
        backend=plan.backend,
        inject=plan.inject,
        timeout_seconds=plan.timeout_seconds,
        hang_seconds=options["hang_after"],
        deadline_seconds=plan.deadline_seconds,
    )
    place = read_place(options)
    python = parse_pythons(options["python"]).get("")
    with EventFile(options["events"]) as events:  # standard error is the script's
        run = run_script(script, place, python=python, listener=events.write, notice=warn)
    return report_ranks(run, place, wanted, partial(_render, form=wanted.form))


def parse_pythons(texts: tuple[str, ...]) -> dict[str, str]:
    """Interpreters by framework, from `PATH` (under "") and `FRAMEWORK=PATH`.

    Raises:
        UsageError: there is no such framework.
    """
    pythons = {}
    for text in texts:
        framework, equals, path = text.partition("=")
        if not equals or "/" in framework:
            framework, path = "", text
        elif framework not in FRAMEWORKS:
            raise UsageError(
                f"--python {text}: there is no framework {framework!r}",
                hint=f"choose from {', '.join(FRAMEWORKS)}, or give the path alone",
            )
        pythons[framework] = path
    return pythons


def _refuse_contradictions(options: dict[str, Any]) -> None:
    if options["script_arguments"] and options["script"] is None:
        raise UsageError(
            f"what is {options['script_arguments'][0]!r} for?",
            hint="arguments of a script need --script FILE",
        )
    if options["parameters"] is not None and not options["advise"]:
        raise UsageError("--parameters is for --advise", hint="gpudiag train --advise --parameters 7B")
    if options["no_master_weights"] and not options["advise"]:
        raise UsageError(
            "--no-master-weights is for --advise", hint="gpudiag train --advise --no-master-weights"
        )
    if options["advise"]:
        refuse_given(lambda name: name not in _FOR_ADVICE, "is for a run, and --advise runs nothing")
    if options["script"] is None:
        refuse_given(lambda name: name == "hang_after", "is for --script FILE")
    else:
        refuse_given(
            lambda name: name in _NOT_FOR_SCRIPTS, "is not for --script: the script decides that itself"
        )


def _render(report: TrainingReport, style: "Style", *, form: str) -> str:
    from gpudiag.render.training_text import render_training, render_training_markdown

    return render_training_markdown(report) if form == "markdown" else render_training(report, style=style)
