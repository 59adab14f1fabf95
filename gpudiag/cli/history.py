"""`gpudiag history`: stored runs, baselines and drift."""

import os
import sys

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.options import json_option
from gpudiag.errors import ExitStatus

# Nothing else waits for it, and a database over the network may take a while.
_READ_SECONDS = 10.0


@click.command("history", context_settings=HELP_SETTINGS)
@json_option
@click.option("--store", metavar="URL", help="Where the history is.  [default: in the state directory]")
def history(as_json: bool, store: str | None) -> ExitStatus:
    """What is remembered of this machine: its runs, its GPUs, its baselines, and what drifts.

    It judges nothing: the exit status is 0 whenever there was an answer. Drift against the own baseline
    is the check performance.drift of `gpudiag preflight`.
    """
    from gpudiag.model.codec import dumps
    from gpudiag.render.history_text import render_history
    from gpudiag.render.style import Style, wants_colour
    from gpudiag.store.database import parse_store_url, require_driver
    from gpudiag.store.history import default_store, read_history
    from gpudiag.store.state_folder import own_machine_key

    if store is not None:
        require_driver(parse_store_url(store))
    found = read_history(store or default_store(), own_machine_key(), _READ_SECONDS)
    if as_json:
        sys.stdout.write(dumps(found) + "\n")
    else:
        sys.stdout.write(render_history(found, Style(wants_colour(sys.stdout.isatty(), dict(os.environ)))))
    return ExitStatus.PASS
