"""A command as a job of several machines: the script, command line or manifest that starts it there."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gpudiag.model.number_ranges import count_of

JOB_FORMS = ("torchrun", "slurm", "mpi", "kubernetes")

_PORT = 29500  # torchrun's own
_IMAGE = "gpudiag:latest"
_MINUTES = 30


@dataclass(frozen=True, slots=True)
class JobShape:
    """How many machines a job has, and how many ranks and GPUs it has on each."""

    nodes: int
    ranks_per_node: int
    gpus_per_node: int


def render_job(form: str, arguments: Sequence[str], shape: JobShape) -> str:
    """The file or command for `gpudiag` with those arguments. Raises KeyError: `form` is not known."""
    renderers = {"torchrun": _torchrun, "slurm": _slurm, "mpi": _mpi, "kubernetes": _kubernetes}
    return renderers[form](arguments, shape)


def _torchrun(arguments: Sequence[str], shape: JobShape) -> str:
    last = shape.nodes - 1
    return f"""#!/bin/sh
# Run this on each of the {count_of(shape.nodes, "machine")}, with MASTER_ADDR naming the one that has
# NODE_RANK 0:
#   MASTER_ADDR=machine1 NODE_RANK=0 sh THIS_FILE   (NODE_RANK 0 to {last})
exec torchrun --nnodes {shape.nodes} --nproc-per-node {shape.ranks_per_node} \\
  --node-rank "${{NODE_RANK:?is 0 to {last}, another one on each machine}}" \\
  --master-addr "${{MASTER_ADDR:?is the machine that has NODE_RANK 0}}" \
--master-port "${{MASTER_PORT:-{_PORT}}}" \\
  -m gpudiag {shlex.join(arguments)}
"""


def _slurm(arguments: Sequence[str], shape: JobShape) -> str:
    gpus = f"#SBATCH --gpus-per-node={shape.gpus_per_node}\n" if shape.gpus_per_node else ""
    return f"""#!/bin/bash
# sbatch THIS_FILE
#SBATCH --job-name=gpudiag
#SBATCH --nodes={shape.nodes}
#SBATCH --ntasks-per-node={shape.ranks_per_node}
{gpus}#SBATCH --time={_MINUTES}
#SBATCH --output=gpudiag-%j.txt
# A rank that fails must not end the others: their output shows why it failed.
exec srun --kill-on-bad-exit=0 gpudiag {shlex.join(arguments)}
"""


def _mpi(arguments: Sequence[str], shape: JobShape) -> str:
    ranks = shape.nodes * shape.ranks_per_node
    slots = ",".join(
        f"machine{number}:{shape.ranks_per_node}" for number in range(1, min(shape.nodes, 2) + 1)
    )
    where = ' ${HOSTS:+--host "$HOSTS"} -x MASTER_ADDR="${HOSTS%%[:,]*}"' if shape.nodes > 1 else ""
    hosts = f"#   HOSTS={slots}{',...' * (shape.nodes > 2)} sh THIS_FILE\n" if shape.nodes > 1 else ""
    place = (
        "# In a job of Slurm without HOSTS; elsewhere HOSTS names the machines, rank 0's first:\n"
        if hosts
        else ""
    )
    return f"""#!/bin/sh
# Open MPI.
{place}{hosts}exec mpirun -np {ranks} --map-by ppr:{shape.ranks_per_node}:node{where} \\
  gpudiag {shlex.join(arguments)}
"""


def _kubernetes(arguments: Sequence[str], shape: JobShape) -> str:
    name = f"gpudiag-{next((word for word in arguments if not word.startswith('-')), 'job')}"
    master = f"{name}-0.{name}"
    environment = [("MASTER_ADDR", master), ("MASTER_PORT", str(_PORT))]
    if shape.ranks_per_node == 1:
        command = ["gpudiag", *arguments]
        environment.append(("WORLD_SIZE", str(shape.nodes)))
    else:
        command = [
            *("torchrun", f"--nnodes={shape.nodes}", f"--nproc-per-node={shape.ranks_per_node}"),
            *("--node-rank=$(JOB_COMPLETION_INDEX)", "--master-addr=$(MASTER_ADDR)"),
            *("--master-port=$(MASTER_PORT)", "-m", "gpudiag", *arguments),
        ]
    variables = "".join(
        f"\n            - name: {key}\n              value: {json.dumps(value)}" for key, value in environment
    )
    limits = (
        f"\n          resources:\n            limits:\n              nvidia.com/gpu: {shape.gpus_per_node}"
        if shape.gpus_per_node
        else ""
    )
    words = "".join(f"\n            - {json.dumps(word)}" for word in command)
    return f"""# kubectl apply -f THIS_FILE; kubectl logs job/{name} -f
# Pod 0 of the Job is rank 0's machine, and the Service gives it a name. {_IMAGE} is the image of this
# repository's Dockerfile.
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    batch.kubernetes.io/job-name: {name}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {shape.nodes}
  parallelism: {shape.nodes}
  backoffLimit: 0
  activeDeadlineSeconds: {_MINUTES * 60}
  template:
    spec:
      subdomain: {name}
      restartPolicy: Never
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            - labelSelector:
                matchLabels:
                  batch.kubernetes.io/job-name: {name}
              topologyKey: kubernetes.io/hostname
      containers:
        - name: gpudiag
          image: {_IMAGE}
          imagePullPolicy: IfNotPresent
          command:{words}
          env:{variables}{limits}
          volumeMounts:
            - name: shm
              mountPath: /dev/shm
      volumes:
        - name: shm
          emptyDir:
            medium: Memory
"""
