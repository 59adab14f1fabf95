"""Which containers have the GPUs, kept up to date by a child that asks the kubelet (sampler/kubelet.py).

Nothing here waits: whether there is a socket is looked up by a thread, and the child's messages are read as
they come. A child that is silent is replaced, so that a kubelet that hangs costs the names of pods and
nothing else.
"""

import threading
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

from gpudiag.linux.loop_child import ChildProcess, SingleChild
from gpudiag.model.owners import PodDevice, PodDevices
from gpudiag.model.reading import MissingReason
from gpudiag.probe.kubelet.ask import DEADLINE_SECONDS, find_obstacle
from gpudiag.sampler.kubelet import PERIOD_SECONDS

_CHILD = "gpudiag.sampler.kubelet"
_SILENT_SECONDS = PERIOD_SECONDS + 3 * DEADLINE_SECONDS  # two calls, and a busy machine
_LOOK_SECONDS = 15.0  # between two looks whether there is a kubelet
_AGAIN_SECONDS = 30.0  # between two children
_KEPT_SECONDS = 60.0  # a kubelet that restarts is back by then, and its pods have run on
_IN_A_POD = "KUBERNETES_SERVICE_HOST"  # set in every container by the kubelet


class PodWatch(SingleChild):
    """The kubelet's account of the GPUs; `pods`: None without one, `warning`: the reason if wanted."""

    def __init__(self, path: str | None, environment: Mapping[str, str]) -> None:
        """Watch the kubelet behind that socket once `look` is called; without a path, none."""
        super().__init__()
        self.pods: PodDevices | None = None
        self.warning: str | None = None
        self._path = path
        self._environment = environment
        self._answered_at = self._looked_at = self._started_at = -_LOOK_SECONDS * 10
        self._looking: threading.Thread | None = None
        self._is_there = False

    def look(self) -> None:
        """Start the child where it is missing, replace one that is silent; call it about every second."""
        if self._path is None:
            return
        now = monotonic()
        self.count_stuck()
        if self.pods is not None and now - self._answered_at > _KEPT_SECONDS:
            self.pods = None
        if self._child is not None:
            if not self._child.ended and now - self._child.last_message_at < _SILENT_SECONDS:
                return
            self._note("the process that asks the kubelet gave no answer, and is started again")
            self.close()
        if not self._is_there:
            self._look_for_socket(self._path, now)
        elif now - self._started_at > _AGAIN_SECONDS:
            self._started_at = now
            with suppress(OSError):  # no process can be started: tried again
                self._child = ChildProcess(_CHILD, (self._path,), self._receive, self._environment)

    def _look_for_socket(self, path: str, now: float) -> None:
        if now - self._looked_at < _LOOK_SECONDS or (self._looking is not None and self._looking.is_alive()):
            return
        self._looked_at = now
        self._looking = threading.Thread(target=self._find_socket, args=(path,), daemon=True)
        self._looking.start()

    def _find_socket(self, path: str) -> None:
        """Note whether there is a kubelet to ask; a machine without one is no reason for a warning."""
        obstacle = find_obstacle(path)
        if obstacle is None or obstacle.reason is MissingReason.ERROR:  # as while it restarts
            self._is_there = True
        elif obstacle.reason is MissingReason.NO_PERMISSION or self._environment.get(_IN_A_POD):
            self._note(obstacle.detail)

    def _receive(self, _child: ChildProcess, message: dict[str, Any]) -> None:
        if message["kind"] == "pods":
            given, offered = message["devices"], message["allocatable"]
            self.pods = PodDevices(
                tuple(PodDevice(*device) for device in given), None if offered is None else frozenset(offered)
            )
            self._answered_at = monotonic()
            self.warning = None
        else:
            self._note(message["detail"])

    def _note(self, why: str) -> None:
        self.warning = f"the pods that use the GPUs cannot be named: {why}"
