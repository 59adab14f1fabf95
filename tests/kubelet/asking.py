"""Asks a kubelet as gpudiag does, once for each line `SOCKET SECONDS` of its standard input.

Each answer is a line of JSON. A program, because gRPC leaves threads behind, and a process with threads
starts its children more slowly.
"""

import json
import sys

from gpudiag.model.reading import Missing
from gpudiag.probe.kubelet.ask import ask_kubelet


def main() -> None:
    for line in sys.stdin:
        path, seconds = line.split()
        answer = ask_kubelet(path, float(seconds))
        if isinstance(answer, Missing):
            told = {"reason": answer.reason, "detail": answer.detail}
        else:
            offered = None if answer.allocatable is None else sorted(answer.allocatable)
            devices = [[one.device_id, one.namespace, one.pod, one.container] for one in answer.devices]
            told = {"devices": devices, "allocatable": offered}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
