"""What the kubelet is asked and what comes of its answers, over real gRPC.

tests/kubelet has the one that answers.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpudiag.model.reading import MissingReason
from gpudiag.probe.kubelet.ask import find_obstacle, socket_of
from tests.kubelet.fake_kubelet import fake_kubelet, pod

pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'gpudiag[kubernetes]'")

REPOSITORY = Path(__file__).resolve().parents[3]
GPU = "GPU-5f0b8d21-0a4c-4f6e-9f0d-0c6a1b2c3d4e"
SHORT_SECONDS = "0.5"  # for those that never answer
LONG_SECONDS = "60"
NOBODY = 65534


class Asker:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kubelet.asking"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, path: Path, seconds: str = LONG_SECONDS) -> dict:
        self.process.stdin.write(f"{path} {seconds}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self.process.stdout.close()


@pytest.fixture(scope="module")
def asker():
    started = Asker()
    yield started
    started.end()


@pytest.fixture(scope="module")
def kubelet(tmp_path_factory):
    with fake_kubelet(tmp_path_factory.mktemp("k") / "kubelet.sock") as started:
        yield started


def test_gpus_come_with_their_containers_and_other_devices_are_left_out(asker, kubelet):
    mig = pod("b", "two", "serve", "MIG-1/7", resource="nvidia.com/mig-1g.10gb")
    fpga = pod("c", "three", "x", "fpga-1", resource="intel.com/fpga")
    kubelet.tell(mode="ok", old=False, pods=[pod("a", "one-0", "train", GPU), mig, fpga], allocatable=[GPU])
    assert asker.ask(kubelet.socket) == {
        "devices": [[GPU, "a", "one-0", "train"], ["MIG-1/7", "b", "two", "serve"]],
        "allocatable": [GPU],
    }
    kubelet.tell(old=True)
    assert asker.ask(kubelet.socket)["allocatable"] is None
    kubelet.tell(pods=[], old=False, allocatable=[])
    assert asker.ask(kubelet.socket) == {"devices": [], "allocatable": []}


def test_ten_thousand_pods_are_read(asker, kubelet):
    kubelet.tell(
        mode="ok", old=False, others=9_999, pods=[pod("ml", "llama-0", "train", GPU)], allocatable=[GPU]
    )
    assert asker.ask(kubelet.socket)["devices"] == [[GPU, "ml", "llama-0", "train"]]
    kubelet.tell(others=0, pods=[])


def test_a_name_of_another_kubelet_cannot_steer_a_terminal(asker, kubelet):
    kubelet.tell(mode="ok", pods=[pod("a", "x\x1b[31m" + "y" * 1000, "t", GPU)])
    name = asker.ask(kubelet.socket)["devices"][0][2]
    assert "\x1b" not in name
    assert len(name) < 300


def test_each_way_of_giving_no_answer_is_told_in_a_sentence(asker, kubelet, tmp_path):
    told = {}
    for mode in ("hang", "error", "garbage", "bad text"):
        kubelet.tell(mode=mode)
        told[mode] = asker.ask(kubelet.socket, SHORT_SECONDS if mode == "hang" else LONG_SECONDS)
    kubelet.tell(mode="ok", pods=[pod("a", "back", "t", GPU)])
    assert asker.ask(kubelet.socket)["devices"] == [[GPU, "a", "back", "t"]]
    told["absent"] = asker.ask(tmp_path / "none.sock")
    told["refused"] = asker.ask(_refusing(tmp_path / "old.sock"))
    told["long"] = asker.ask(tmp_path / ("d" * 200))
    with _talking(tmp_path / "web.sock", b"HTTP/1.1 400 Bad Request\r\n\r\n") as path:
        told["no gRPC"] = asker.ask(path, "5")
    reasons = {mode: answer["reason"] for mode, answer in told.items()}
    assert reasons == (
        {"hang": "timed_out", "error": "error", "garbage": "error", "bad text": "error"}
        | {"absent": "source_absent", "refused": "error", "long": "error", "no gRPC": "error"}
    )
    for mode, answer in told.items():
        assert answer["detail"].isprintable(), mode
        assert len(answer["detail"]) < 500, mode
    assert "0.5 s" in told["hang"]["detail"]
    assert "rejected by rate limit" in told["error"]["detail"]


def test_without_the_extra_it_is_said_how_to_install_it(kubelet):
    code = (
        "import sys; sys.modules['grpc'] = None; from gpudiag.probe.kubelet.ask import ask_kubelet;"
        f"print(ask_kubelet({str(kubelet.socket)!r}).detail)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert "[kubernetes]'" in done.stdout


def test_what_is_in_the_way_is_found_without_grpc(tmp_path):
    assert find_obstacle(str(tmp_path / "none")).reason is MissingReason.SOURCE_ABSENT
    assert "refused" in find_obstacle(str(_refusing(tmp_path / "old.sock"))).detail.lower()
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    is_root = os.geteuid() == 0
    try:
        if is_root:  # whom nothing is closed to
            os.seteuid(NOBODY)
        obstacle = find_obstacle(str(closed / "kubelet.sock"))
    finally:
        if is_root:
            os.seteuid(0)
    assert obstacle.reason is MissingReason.NO_PERMISSION
    assert "deploy/kubernetes/pods" in obstacle.detail


def test_the_socket_is_the_one_asked_for_the_usual_one_or_none():
    assert socket_of(None, "/usual") == "/usual"
    assert socket_of("/k3s.sock", "/usual") == "/k3s.sock"
    assert socket_of("off", "/usual") is None


def _refusing(path: Path) -> Path:
    """A socket that a kubelet left behind: its file is there, and nobody listens."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    return path


class _talking:
    """A server that says something of its own to whoever comes."""

    def __init__(self, path: Path, words: bytes) -> None:
        self.path = path
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen(16)
        self._thread = threading.Thread(target=self._talk, args=(words,), daemon=True)

    def _talk(self, words: bytes) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):  # who only looked has gone
                connection.sendall(words)

    def __enter__(self) -> Path:
        self._thread.start()
        return self.path

    def __exit__(self, *_) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)
