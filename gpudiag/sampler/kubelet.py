"""`python -m gpudiag.sampler.kubelet PARENT_PID SOCKET`: which container has which GPU, again and again.

One line each time: {"kind": "pods", "devices": [[device id, namespace, pod, container], ...], "allocatable":
[ids] or null}, or {"kind": "failed", "reason": a word of MissingReason, "detail": ...}. A process of its own,
because gRPC keeps threads and 30 MB; it is started only where the socket is.
"""

import json
import os
import sys
from time import sleep
from typing import Any

from gpudiag.linux.child import die_with_parent
from gpudiag.model.reading import Missing
from gpudiag.probe.kubelet.ask import ask_kubelet

PERIOD_SECONDS = 10.0  # a pod's start takes about as long


def main() -> None:
    """Ask until the service ends."""
    die_with_parent(int(sys.argv[1]))
    while True:
        sys.stdout.write(json.dumps(_message(sys.argv[2]), separators=(",", ":")) + "\n")
        sys.stdout.flush()
        sleep(PERIOD_SECONDS)


def _message(path: str) -> dict[str, Any]:
    answer = ask_kubelet(path)
    if isinstance(answer, Missing):
        return {"kind": "failed", "reason": answer.reason.value, "detail": answer.detail}
    devices = [[given.device_id, given.namespace, given.pod, given.container] for given in answer.devices]
    allocatable = None if answer.allocatable is None else sorted(answer.allocatable)
    return {"kind": "pods", "devices": devices, "allocatable": allocatable}


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(0)  # the service has given it up
