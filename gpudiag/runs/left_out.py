"""Which machines of a launch a job should do without, in the words of its launcher."""

import json
import socket
from collections.abc import Mapping, Sequence

from gpudiag.ranks.launchers import Launcher
from gpudiag.ranks.slurm import expand_nodes

_ON_KUBERNETES = (Launcher.KUBEFLOW, Launcher.INDEXED_JOB)


def node_name(variables: Mapping[str, str]) -> str:
    """This machine as its launcher calls it: Slurm's node, the NODE_NAME of a pod's manifest, else the host's name."""
    return variables.get("SLURMD_NODENAME") or variables.get("NODE_NAME") or socket.gethostname()


def launched_nodes(variables: Mapping[str, str]) -> tuple[str, ...]:
    """All machines of the launch, where the launcher tells their names; empty where it does not."""
    return expand_nodes(variables.get("SLURM_STEP_NODELIST", "")) if "SLURM_STEP_ID" in variables else ()


def describe_leaving_out(launcher: Launcher, unfit: Sequence[str], fit: Sequence[str]) -> str | None:
    """The flag or setting that starts the job on the others; None where there is nothing to leave out.

    Slurm's `--exclude`, a node affinity of Kubernetes; mpirun and torchrun are told where to run instead.
    """
    if not unfit:
        return None
    if launcher is Launcher.SRUN:
        return f"--exclude={','.join(unfit)}"
    if launcher in _ON_KUBERNETES:
        term = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(unfit)}
        terms = [{"matchExpressions": [term]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        return f"affinity: {json.dumps({'nodeAffinity': required})}"
    if launcher in (Launcher.MPIRUN, Launcher.HYDRA) and fit:
        return f"{'--host' if launcher is Launcher.MPIRUN else '-hosts'} {','.join(fit)}"
    return None
