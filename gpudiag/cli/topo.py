"""`gpudiag topo`: how the GPUs of this machine are wired, and what stands out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from gpudiag.cli.commands import HELP_SETTINGS
from gpudiag.cli.options import deadline_option, store_option
from gpudiag.cli.printing import EXIT_STATUSES, print_noun, warn
from gpudiag.cli.result_options import Wanted, result_options
from gpudiag.errors import ExitStatus
from gpudiag.runs.devices import DEADLINE_SECONDS

if TYPE_CHECKING:
    from gpudiag.probe.start import StartedProbes

_EXAMPLES = """\b
Examples:
  gpudiag topo
  gpudiag topo --json | jq -r '.nic_paths[] | select(.label == "PIX") | .nic'
  NCCL_P2P_LEVEL=SYS gpudiag topo       what NCCL would do with that setting
  gpudiag simulate b200x8 -- gpudiag topo
Exit status: 0 PASS or WARN, 1 FAIL (a link is down), 2 usage, 3 no verdict:
no GPU is here, or the driver does not answer."""


@click.command("topo", context_settings=HELP_SETTINGS, epilog=_EXAMPLES)
@store_option
@deadline_option(
    DEADLINE_SECONDS, "; unless it is given, 5 s more for each GPU that the driver attaches first"
)
@result_options(verbose="Also virtual functions, and every PCI bridge.")
@click.pass_obj
def topo(started: StartedProbes | None, store: str | None, deadline: float, wanted: Wanted) -> ExitStatus:
    """Show how GPUs, network cards and processors are joined, and what NCCL would choose.

    The matrix has the letters of `nvidia-smi topo -m`. Beside it: the rate of the links, NUMA nodes, PCI
    bridges, the network cards that NCCL takes for each GPU, P2P and GPUDirect RDMA under the NCCL settings of
    this shell, and the bandwidth last measured here (`gpudiag bandwidth`, `gpudiag preflight --level
    standard`). What stands out is judged by the checks of `gpudiag preflight`: a link that is down, a GPU on
    another root, a card without its GPU, unequal slots.
    """
    from gpudiag.render.topology_text import render_topology
    from gpudiag.runs.topology import see_topology

    given = click.get_current_context().get_parameter_source("deadline")
    patient = given is ParameterSource.DEFAULT
    topology, warning = see_topology(deadline, store, patient=patient, started=started)
    if warning:
        warn(f"{warning}; bandwidths measured before are not shown")
    assert topology.verdict is not None  # noqa: S101 - the recipe has judged
    return print_noun(topology, wanted, render_topology, EXIT_STATUSES[topology.verdict])
