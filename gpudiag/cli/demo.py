"""`gpudiag demo`: the page, or the view of a terminal, on a simulated machine on which things go wrong."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.completion import offer_stories
from gpudiag.cli.options import WholeRange
from gpudiag.errors import UsageError
from gpudiag.installed import install_command

if TYPE_CHECKING:
    from gpudiag.simulate.story import Chapter, Story

_MAX_PORT = 65535
_STORY = "demo"
_EXAMPLES = """\b
Examples:
  gpudiag demo                   the page: it prints the address
  gpudiag demo --watch           the same on this terminal
  gpudiag demo night.toml        a story of your own: docs/simulate.md
  gpudiag simulate demo -- gpudiag list --watch 1
The last one needs neither the extra [serve] nor [watch]."""


@click.command("demo", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.argument("story", default=_STORY, shell_complete=offer_stories)
@click.option(
    "--watch", "on_terminal", is_flag=True, help="Open the view of `gpudiag watch` in place of the page."
)
@click.option(
    "--port",
    type=WholeRange(0, _MAX_PORT),
    metavar="N",
    help="Serve the page on this port of 127.0.0.1.  [default: a free one]",
)
def demo(story: str, on_terminal: bool, port: int | None) -> int:
    """Show gpudiag on a simulated machine on which things go wrong, without a GPU.

    A job trains, a GPU gets hot and falls off the bus, a rank of the job hangs; it takes four minutes. The
    page and the view are gpudiag's own; every number is made up, and both show SIMULATED. It needs no GPU, no
    torch and no root, and touches no GPU that is here. Ctrl-C ends it and leaves nothing behind.
    """
    if on_terminal and port is not None:
        raise UsageError("--port is for the page, and --watch shows none", hint="give one of them")
    extra, module = ("watch", "textual") if on_terminal else ("serve", "fastapi")
    if find_spec(module) is None:
        raise UsageError(
            f"{module} is not installed; `gpudiag simulate {story} -- gpudiag list --watch 1` does without",
            hint=install_command(extra),
        )
    from gpudiag.simulate.loader import load_story
    from gpudiag.simulate.run_program import run_on_machine

    machine = load_story(story)
    if machine is None:
        raise UsageError(
            f"nothing happens on {story}: it has no [[story]]",
            hint=f"gpudiag simulate {story} -- gpudiag serve",
        )
    if on_terminal:
        command = ["gpudiag", "watch"]
    else:
        _print(*_outline(machine))
        command = ["gpudiag", "serve", "--port", str(port or 0), "--watch-jobs"]
    announce = None if on_terminal else _announce
    return run_on_machine(machine, command, announce=announce, forgets=True)


def _outline(story: Story) -> tuple[str, ...]:
    """What the user sees before the page's address."""
    minutes, seconds = divmod(int(story.seconds), 60)
    return (
        f"SIMULATED {story.name}: no real GPU is read, every number is made up",
        f"  the story takes {minutes}:{seconds:02}; Ctrl-C ends it",
    )


def _announce(chapter: Chapter) -> None:
    _print(f"{time.strftime('%H:%M:%S')} {chapter.title}")


def _print(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)
