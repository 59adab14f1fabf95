"""`gpudiag history`: stored runs, baselines and drift."""

import os

import click

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.options import deadline_option, store_option
from gpudiag.cli.printing import print_noun
from gpudiag.cli.result_options import Wanted, result_options
from gpudiag.errors import ExitStatus, UsageError

# Nothing else waits for it, and a database over the network may take a while.
_READ_SECONDS = 10.0


@click.command("history", context_settings=HELP_SETTINGS)
@store_option
@deadline_option(_READ_SECONDS)
@result_options(verbose="Every run and every baseline.")
def history(store: str | None, deadline: float, wanted: Wanted) -> ExitStatus:
    """What is remembered of this machine: its runs, its GPUs, its baselines, and what drifts.

    It judges nothing: the exit status is 0 whenever there was an answer. Drift against the own baseline
    is the check performance.drift of `gpudiag preflight`.
    """
    from gpudiag.render.history_text import render_history
    from gpudiag.store.database import parse_store_url, place_of, require_driver
    from gpudiag.store.history import read_history
    from gpudiag.store.state_folder import default_store, own_machine_key

    url = None if store is None else parse_store_url(store)
    if url is not None:
        require_driver(url)
    found = read_history(store or default_store(), own_machine_key(), deadline)
    is_file = url is not None and url.get_backend_name() == "sqlite"
    if url is not None and is_file and not found.runs and not os.path.exists(place_of(url)):
        hint = "give the file that `gpudiag preflight --store FILE` wrote, or leave --store out"
        raise UsageError(f"--store {place_of(url)}: there is no such file", hint=hint)
    return print_noun(found, wanted, render_history)
