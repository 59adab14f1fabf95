"""The watch over the kubelet: when its child is started, replaced and believed.

The child itself: test_kubelet, test_owners.
"""

import pytest

from gpudiag.model.owners import PodDevice, PodDevices
from gpudiag.sampler import pod_watch
from gpudiag.sampler.pod_watch import PodWatch

TOLD = {"kind": "pods", "devices": [["GPU-1", "ml", "llama-0", "train"]], "allocatable": ["GPU-1"]}
PODS = PodDevices((PodDevice("GPU-1", "ml", "llama-0", "train"),), frozenset({"GPU-1"}))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Child:
    """Stands in for the process: heard when the test says something in its name."""

    started: list["Child"]

    def __init__(self, module, arguments, receive, environment=None) -> None:
        self.arguments, self.receive = arguments, receive
        self.last_message_at, self.ended, self.abandoned = pod_watch.monotonic(), False, False
        Child.started.append(self)

    def say(self, message) -> None:
        self.last_message_at = pod_watch.monotonic()
        self.receive(self, message)

    def abandon(self) -> None:
        self.ended = self.abandoned = True

    def is_reaped(self) -> bool:
        return self.abandoned


@pytest.fixture
def clock(monkeypatch):
    ticking = Clock()
    Child.started = []
    monkeypatch.setattr(pod_watch, "monotonic", ticking)
    monkeypatch.setattr(pod_watch, "ChildProcess", Child)
    return ticking


@pytest.fixture
def listening(tmp_path):
    """A socket that takes connections, as a kubelet's."""
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "kubelet.sock"))
        server.listen()
        yield str(tmp_path / "kubelet.sock")


def look(watch: PodWatch) -> None:
    """Look, and let the thread that looks for the socket end."""
    watch.look()
    if watch._looking is not None:
        watch._looking.join(30)


def started(watch: PodWatch) -> Child:
    look(watch)
    look(watch)
    return Child.started[-1]


def test_without_a_kubelet_nothing_is_started_and_nothing_said(clock, tmp_path):
    for path, environment in ((None, {}), (str(tmp_path / "none.sock"), {})):
        watch = PodWatch(path, environment)
        for _ in range(3):
            look(watch)
            clock.now += 20
        assert (watch.pods, watch.warning, Child.started) == (None, None, [])


def test_in_a_pod_without_the_socket_it_is_said_what_is_missing(clock, tmp_path):
    watch = PodWatch(str(tmp_path / "none.sock"), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    look(watch)
    assert watch.warning == f"the pods that use the GPUs cannot be named: {tmp_path}/none.sock is not there"
    assert Child.started == []


def test_a_socket_that_appears_later_is_found(clock, tmp_path, listening):
    watch = PodWatch(str(tmp_path / "later.sock"), {})
    look(watch)
    (tmp_path / "later.sock").symlink_to(listening)
    look(watch)
    assert Child.started == []  # not at once: looked up every 15 s
    clock.now += 20
    assert started(watch).arguments == (str(tmp_path / "later.sock"),)


def test_what_the_child_tells_is_believed_until_it_is_old(clock, listening):
    watch = PodWatch(listening, {})
    child = started(watch)
    child.say(TOLD)
    assert watch.pods == PODS
    child.say({"kind": "failed", "reason": "timed_out", "detail": "it gave no answer within 5 s"})
    assert watch.warning.endswith("within 5 s")
    clock.now += 30
    child.say({"kind": "failed", "reason": "timed_out", "detail": "it gave no answer within 5 s"})
    look(watch)
    assert watch.pods == PODS  # a kubelet that restarts takes no pod with it
    clock.now += 40
    child.say({"kind": "failed", "reason": "timed_out", "detail": "it gave no answer within 5 s"})
    look(watch)
    assert watch.pods is None
    child.say(TOLD)
    assert (watch.pods, watch.warning) == (PODS, None)


def test_a_child_that_ends_or_is_silent_is_replaced_but_not_at_once(clock, listening):
    watch = PodWatch(listening, {})
    first = started(watch)
    first.ended = True
    look(watch)
    assert "started again" in watch.warning
    assert len(Child.started) == 1
    clock.now += 31
    look(watch)
    second = Child.started[1]
    clock.now += 26  # two calls that hang, and its pause
    look(watch)
    assert second.abandoned
    clock.now += 6
    look(watch)
    assert len(Child.started) == 3
    watch.close()
    assert Child.started[2].abandoned
    assert watch.count_stuck() == 0
