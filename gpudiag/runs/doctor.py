"""The recipe of `gpudiag doctor`: look at the sources, the surroundings and the history, then judge."""

from __future__ import annotations

import os
import sys
from time import monotonic

from gpudiag import __version__
from gpudiag.checks.doctor.inputs import Sight
from gpudiag.checks.doctor.report import judge_doctor
from gpudiag.errors import GpudiagError
from gpudiag.installed import install_command
from gpudiag.model.codec import join_sheets, read_sheet
from gpudiag.model.doctor import DoctorReport, Surroundings
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.probe.guard import GuardedChild, collect, start_guarded
from gpudiag.probe.inventory import take_snapshot
from gpudiag.probe.start import host_root
from gpudiag.reference.training import strategy_facts
from gpudiag.store.history import HistoryKeeper
from gpudiag.store.state_folder import default_store, own_machine_key, state_directory

DEADLINE_SECONDS = 5.0


def see_doctor(
    *,
    deadline_seconds: float = DEADLINE_SECONDS,
    store: str | None = None,
    python: str | None = None,
    deep: bool = False,
) -> DoctorReport:
    """What of gpudiag works on this machine, within a second of the deadline; `deep` waits for torch too.

    `python` is the interpreter of the job, whose packages are looked at.
    """
    began = monotonic()
    keeper = HistoryKeeper(store or default_store(), own_machine_key())
    try:
        child = start_guarded(
            "gpudiag.probe.surroundings:stream_surroundings",
            host_root(os.environ),
            str(state_directory()),
            python,
            {name: os.environ.get(name, "") for name in ("PATH", "CC")},
        )
        snapshot = take_snapshot(
            ("nvml", "torch") if deep else ("nvml",),
            deadline_seconds,
            python=python,
            host_state=True,
            kernel_log=True,
        )
        collect([(child, began + deadline_seconds)])
        runs = _count_runs(keeper, max(0.1, began + deadline_seconds - monotonic()))
    finally:
        keeper.close()
    sight = Sight(
        snapshot=snapshot,
        seen=_surroundings(child),
        runs_stored=runs,
        install=lambda extra: _install(extra, python),
        python=python or sys.executable,
        torch_asked=deep,
    )
    return judge_doctor(sight, __version__, monotonic() - began)


def _surroundings(child: GuardedChild) -> Surroundings:
    """What an ended child of `stream_surroundings` read.

    A topic that it did not send is missing with the reason.
    """
    why = Missing(MissingReason.ERROR, child.detail)
    if child.ending == "timed_out":
        why = Missing(MissingReason.TIMED_OUT, f"no answer within {child.seconds:.1f} s")
    return read_sheet(Surroundings, join_sheets(*(sheet for _, sheet in child.messages)), why)


def _count_runs(keeper: HistoryKeeper, deadline_seconds: float) -> Reading[int]:
    try:
        history, warning = keeper.read(deadline_seconds)
    except GpudiagError as error:
        return Missing(MissingReason.ERROR, error.message)
    return Missing(MissingReason.ERROR, warning) if isinstance(history, Missing) else len(history.runs)


def _install(extra: str, python: str | None) -> str:
    """The command that adds an extra to this gpudiag, or the extra's package to the job's interpreter."""
    facts = next((one for one in strategy_facts().values() if one.framework == extra), None)
    return install_command(extra) if facts is None else facts.install_command(extra, python)
