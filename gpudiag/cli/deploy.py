"""`gpudiag deploy`: the files that put gpudiag to work on a site."""

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from gpudiag.runs.deploy import ShippedFile

_MAX_NHC_BYTES = 1 << 20
_EXAMPLES = """\b
Examples:
  gpudiag deploy
  gpudiag deploy systemd --output /etc/systemd/system
  gpudiag deploy grafana/gpudiag.json > dashboard.json
  gpudiag deploy --nhc /etc/nhc/nhc.conf"""


def _complete_names(context: click.Context, parameter: click.Parameter, start: str) -> list[str]:
    from gpudiag.runs.deploy import FILE_SETS

    return [name for name in FILE_SETS if name.startswith(start)]


@click.command("deploy", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.argument("name", required=False, metavar="[NAME[/FILE]]", shell_complete=_complete_names)
@click.option(
    "--output",
    metavar="FOLDER",
    help=(
        "Write the files into this folder; make it if needed. Do not replace"
        " files that differ. `-` prints them."
    ),
)
@click.option(
    "--nhc",
    type=click.Path(readable=False),
    metavar="FILE",
    help=(
        "Print what gpudiag has instead of each line of this nhc.conf, of LBNL"
        " NHC or AzNHC; - is standard input."
    ),
)
def deploy(name: str | None, output: str | None, nhc: str | None) -> ExitStatus:
    """The files for a service, alerts, a dashboard, and gates before jobs.

    Without NAME: which there are. NAME is one of them, NAME/FILE one file of it; they are printed, or written
    into a folder.
    """
    from gpudiag.runs.deploy import FILE_SETS, read_files, write_files

    if nhc is not None:
        if name is not None or output is not None:
            raise UsageError("--nhc stands alone", hint="gpudiag deploy --nhc /etc/nhc/nhc.conf")
        return _print_nhc(nhc)
    if name is None:
        if output is not None:
            raise UsageError("--output needs the NAME to write", hint="see `gpudiag deploy`")
        print(_describe_sets())
        return ExitStatus.PASS
    files = read_files(name)
    if output is None or output == "-":
        sys.stdout.write(_text_of(files))
        return ExitStatus.PASS
    for path in write_files(files, Path(output)):
        print(path)
    print(f"Next: {FILE_SETS[name.partition('/')[0]].use}")
    return ExitStatus.PASS


def _print_nhc(name: str) -> ExitStatus:
    from gpudiag.reference.nhc import NHC_HINT, parse_nhc
    from gpudiag.render.nhc_text import render_nhc

    shown = "standard input" if name == "-" else name
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
            content = file.read(_MAX_NHC_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {name}: {why}", hint=NHC_HINT) from error
    if b"\0" in content or len(content) > _MAX_NHC_BYTES:
        raise UsageError(f"{shown} is no text, or larger than 1 MiB", hint=NHC_HINT)
    print(render_nhc(shown, parse_nhc(content.decode(errors="replace"), shown)))
    return ExitStatus.PASS


def _describe_sets() -> str:
    from gpudiag.runs.deploy import FILE_SETS, read_files

    lines = []
    for one in FILE_SETS.values():
        lines += [f"{one.name:<15} {one.purpose}"]
        lines += [f"{'':<17}{file.path}" for file in read_files(one.name)]
    lines += ["Next: gpudiag deploy NAME --output FOLDER | gpudiag deploy NAME/FILE"]
    return "\n".join(lines)


def _text_of(files: tuple["ShippedFile", ...]) -> str:
    """One file as it is; several with a line above each that names it."""
    if len(files) == 1:
        return files[0].text
    return "\n".join(f"==> {file.path} <==\n{file.text}" for file in files)
