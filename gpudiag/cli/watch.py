"""`gpudiag watch`: the GPUs, their processes and findings live on a terminal."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.options import SecondsRange
from gpudiag.cli.signals import TerminatedError, end_quietly
from gpudiag.errors import ExitStatus, UsageError
from gpudiag.installed import has_module, install_command

if TYPE_CHECKING:
    from gpudiag.model.device import Snapshot
    from gpudiag.probe.start import StartedProbes
    from gpudiag.watch.feed import Feed
    from gpudiag.watch.recording import Recorder

_FASTEST_SECONDS, _SLOWEST_SECONDS = 1.0, 60.0
_FIRST_SECONDS = 1.0  # for the first picture: a GPU that takes longer comes with the next ones
_DUMB_TERMINALS = ("", "dumb", "unknown")
_LIGHT = "gpudiag list --watch 1"
_EXAMPLES = f"""\b
Examples:
  gpudiag watch                               this machine; ? lists the keys
  gpudiag watch --hosts gpu1,gpu2:9000        these, by their `gpudiag serve`
  gpudiag watch --hosts-file FILE --token-file TOKENS
  gpudiag watch --record night.jsonl.gz       and keep what was seen
  gpudiag watch --replay night.jsonl.gz
  gpudiag simulate h100x8+busy:0+hot:5 -- gpudiag watch
Without the extra [watch], or a terminal: {_LIGHT}"""


@click.command("watch", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@click.option(
    "--interval",
    type=SecondsRange(_FASTEST_SECONDS, _SLOWEST_SECONDS),
    default=2.0,
    metavar="SECONDS",
    help="Read the GPUs every SECONDS.  [default: 2]",
)
@click.option(
    "--hosts", metavar="HOST,...", help="Watch these machines, by the API of their `gpudiag serve`."
)
@click.option(
    "--hosts-file",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="The same, one machine a line.",
)
@click.option(
    "--token-file",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="With --hosts: a file with a line read:TOKEN, as for `gpudiag serve`.",
)
@click.option(
    "--record",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="Write what is seen to FILE; .gz packs it.",
)
@click.option(
    "--replay",
    type=click.Path(readable=False, path_type=Path),
    metavar="FILE",
    help="Show what --record wrote to FILE.",
)
@click.option(
    "--ascii", "is_ascii", is_flag=True, help="Draw with ASCII characters.  [default: by locale and TERM]"
)
@click.pass_obj
def watch(
    started: StartedProbes | None,
    interval: float,
    hosts: str | None,
    hosts_file: Path | None,
    token_file: Path | None,
    record: Path | None,
    replay: Path | None,
    is_ascii: bool,
) -> ExitStatus:
    """Watch the GPUs, who uses them, and what is wrong, on a terminal.

    It shows and never judges: the exit status is 0. Findings are those of the instant checks, each with its
    remedy; keys explain one, look why a job stands still, start a test, and send a signal. A GPU that hangs
    is shown as hung.
    """
    end_quietly()  # it only loads until it draws, and takes the signals itself from then on
    _refuse_conflicts(hosts, hosts_file, token_file, record, replay)
    if not has_module("textual"):
        raise UsageError(
            f"textual is not installed, and the view needs it; `{_LIGHT}` does without",
            hint=install_command("watch"),
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "") in _DUMB_TERMINALS:
        raise UsageError("the view needs a terminal, and there is none, or a dumb one", hint=_LIGHT)
    recorder = _recorder(record)
    try:
        feed = (
            _replay(replay)
            if replay is not None
            else _feed(hosts, hosts_file, token_file, interval, started, recorder)
        )
        number = _show(feed, is_ascii=is_ascii)
    finally:
        if recorder is not None:
            recorder.close()
    if number is not None:
        raise KeyboardInterrupt if number == signal.SIGINT else TerminatedError
    return ExitStatus.PASS


def _show(feed: Feed, *, is_ascii: bool) -> signal.Signals | None:
    """The signal that ended the view, if one did."""
    from gpudiag.watch.glyphs import ASCII, choose_glyphs
    from gpudiag.watch.screen.terminal import show

    return show(feed, ASCII if is_ascii else choose_glyphs(os.environ)).by


def _recorder(path: Path | None) -> Recorder | None:
    if path is None:
        return None
    from gpudiag.watch.recording import Recorder

    return Recorder(path)


def _replay(path: Path) -> Feed:
    from gpudiag.watch.recording import ReplayFeed, read_recording

    return ReplayFeed(read_recording(path))


def _feed(
    hosts: str | None,
    hosts_file: Path | None,
    token_file: Path | None,
    interval: float,
    started: StartedProbes | None,
    recorder: Recorder | None,
) -> Feed:
    if hosts is None and hosts_file is None:
        from gpudiag.watch.local import LocalFeed

        return LocalFeed(interval, None if started is None else lambda: _take_first(started), recorder)
    if not has_module("httptools"):
        raise UsageError(
            "httptools is not installed, and reading other machines needs it", hint=install_command("watch")
        )
    from gpudiag.fleet.addresses import each_once, parse_addresses, read_machine_file
    from gpudiag.watch.services import ServicesFeed

    addresses = () if hosts is None else parse_addresses(hosts.split(","))
    if hosts_file is not None:
        addresses += read_machine_file(hosts_file)
    return ServicesFeed(each_once(addresses), interval, _token(token_file), recorder)


def _take_first(started: StartedProbes) -> Snapshot:
    """The listing by the probes that were started before anything else was loaded."""
    from gpudiag.probe.inventory import take_snapshot

    return take_snapshot(("nvml",), _FIRST_SECONDS, started=started, patient=False)


def _token(path: Path | None) -> str | None:
    """The first token of the file that may read."""
    if path is None:
        return None
    from gpudiag_api.tokens import read_token_file

    return next((token for _, token in read_token_file(path).known), None)


def _refuse_conflicts(
    hosts: str | None,
    hosts_file: Path | None,
    token_file: Path | None,
    record: Path | None,
    replay: Path | None,
) -> None:
    """Raise for options that contradict each other."""
    given = {"--hosts": hosts, "--hosts-file": hosts_file, "--record": record, "--token-file": token_file}
    named = [option for option, value in given.items() if value is not None]
    if replay is not None and named:
        raise UsageError(f"--replay and {named[0]} do not go together", hint="give one of them")
    if token_file is not None and hosts is None and hosts_file is None:
        raise UsageError(
            "--token-file is for the services of --hosts", hint="gpudiag watch --hosts gpu1 --token-file FILE"
        )
