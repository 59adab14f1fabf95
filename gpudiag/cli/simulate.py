"""`gpudiag simulate`: run a program on a simulated machine, or describe that machine."""

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.completion import offer_machines
from gpudiag.errors import ExitStatus, UsageError

# The simulated program's options are its own, even without the two dashes before it.
_SETTINGS = {**HELP_SETTINGS, "allow_interspersed_args": False}

_EXAMPLES = """\b
Examples:
  gpudiag simulate h100x8                            what is on that machine
  gpudiag simulate h100x8 -- gpudiag list
  gpudiag simulate h100x8+lost:3+hot:5 -- nvidia-smi
  gpudiag simulate h100x8+hang:6 -- your-exporter    would your alert fire?
  gpudiag simulate a1.json -- gpudiag list           as it was recorded
  gpudiag simulate demo -- gpudiag list --watch 1    a story, as `gpudiag demo` shows it

The exit status is that of COMMAND. Programs reach the simulated machine through
LD_LIBRARY_PATH and PATH; one that clears these is on the real machine."""


class _SimulateCommand(click.Command):
    """The command, whose help names the machines and the faults that there are."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, then the machines and the faults."""
        from gpudiag.render.style import wrapped
        from gpudiag.simulate.faults.table import FAULTS
        from gpudiag.simulate.machine_file import base_machines, stories

        super().format_epilog(ctx, formatter)
        named = (
            ("Machines", base_machines()),
            ("Stories", stories()),
            ("Faults (N: a GPU)", [kind.usage for kind in FAULTS]),
        )
        for heading, words in named:
            with formatter.section(heading):
                indent = " " * formatter.current_indent
                lines = wrapped(" ".join(words), first=indent, indent=indent, width=formatter.width)
                formatter.write("\n".join(lines) + "\n")


@click.command("simulate", cls=_SimulateCommand, context_settings=_SETTINGS, epilog=_EXAMPLES)
@click.argument("scenario", required=False, shell_complete=offer_machines)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def simulate(scenario: str | None, command: tuple[str, ...]) -> int:
    """Run COMMAND on the simulated machine SCENARIO; without COMMAND, describe the machine.

    SCENARIO is a base machine (h100x8), with faults joined by plus signs (h100x8+lost:3), or a
    story (demo), or a scenario file (.toml), or a recorded machine (.json).
    """
    from gpudiag.simulate.loader import (  # imported late: --help does not need it
        base_machines,
        load_machine,
        load_scenario,
    )

    if not scenario:
        raise UsageError(
            "the machine to simulate is missing", hint=f"one of {', '.join(sorted(base_machines()))}"
        )
    program = command[1:] if command[:1] == ("--",) else command
    if program:
        from gpudiag.simulate.run_program import run_on_machine

        return run_on_machine(load_machine(scenario), program)
    from gpudiag.simulate.faults.table import FAULTS
    from gpudiag.simulate.machine_text import render_machine

    click.echo(render_machine(load_scenario(scenario), [kind.usage for kind in FAULTS]))
    return ExitStatus.PASS
