"""What it costs to name the pods that use the GPUs: asking the kubelet, the process that does it, and series when pods change.

    python benchmarks/pod_labels.py [--seconds 60]

A kubelet that speaks real gRPC (tests/kubelet) has 8 GPUs given out, on a node with more and more other pods. The service
watches 8 simulated H100; then each GPU goes from one pod to another, and the series that end are counted in both dialects:
in gpudiag's own names pods are series of their own, in dcgm-exporter's they are labels of every series.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "api")]

from benchmarks.service_figures import milliseconds, processor_seconds, resident_bytes  # noqa: E402
from gpudiag.model.reading import Missing  # noqa: E402
from gpudiag.probe.kubelet.ask import ask_kubelet  # noqa: E402
from tests.api.serving import machine, serving  # noqa: E402
from tests.kubelet.fake_kubelet import fake_kubelet, pod  # noqa: E402

PODS = (0, 110, 10_000)  # 110 is the kubelet's own limit
TIMES = 20
WAIT_SECONDS = 120.0
MIB = 1 << 20


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="watch the process that asks for so long")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder, fake_kubelet(Path(folder) / "kubelet.sock") as kubelet:
        measure_asking(kubelet)
        with (
            machine("h100x8+busy:0") as session,
            serving(
                session, Path(folder) / "state", "--kubelet-socket", str(kubelet.socket), as_shipped=True
            ) as service,
        ):
            service.wait_for_data()
            count_series(kubelet, service)
            measure_process(kubelet, service, seconds)


def measure_asking(kubelet: Any) -> None:
    """Print what one question costs, by the pods that the kubelet has."""
    print(f"one question to the kubelet, the median of {TIMES}:")
    given = [pod("ml", f"train-{index}", "c", f"GPU-{index}") for index in range(8)]
    for others in PODS:
        kubelet.tell(others=others, pods=given, allocatable=[f"GPU-{index}" for index in range(8)])
        times = sorted(ask_once(kubelet) for _ in range(TIMES))
        print(f"  {others + 8:6} pods: {milliseconds(times[TIMES // 2])}, at most {milliseconds(times[-1])}")


def ask_once(kubelet: Any) -> float:
    """Seconds that one question took."""
    started = time.perf_counter()
    answer = ask_kubelet(str(kubelet.socket))
    if isinstance(answer, Missing):
        raise SystemExit(f"the kubelet did not answer: {answer.detail}")
    return time.perf_counter() - started


def count_series(kubelet: Any, service: Any) -> None:
    """Print how many series end and begin when each GPU goes to another pod."""
    uuids = [device["uuid"] for device in service.live()["devices"]]
    scrapes = []
    for name in ("one", "other"):
        kubelet.tell(others=102, pods=[pod("ml", name, "train", *uuids)], allocatable=uuids)
        service.wait(lambda name=name: is_complete(service, name), WAIT_SECONDS)
        scrapes.append([series_of(service, query) for query in ("", "?dialect=dcgm")])
    print("series of 8 GPUs, and those that end when each GPU goes to another pod:")
    for dialect, before, after in zip(("native", "dcgm"), *scrapes, strict=True):
        print(f"  {dialect:6} {len(before):4} series, {len(before - after)} end, {len(after - before)} begin")


def is_complete(service: Any, name: str) -> bool:
    """Whether a scrape names that pod, and has what a second look at the GPUs gives."""
    text = service.get("/metrics").text
    return f'pod="{name}"' in text and "gpudiag_gpu_tensor_activity_ratio" in text


def series_of(service: Any, query: str) -> set[str]:
    """The series of one scrape."""
    text = service.get(f"/metrics{query}").text
    return {line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")}


def measure_process(kubelet: Any, service: Any, seconds: float) -> None:
    """Print memory and processor time of the process that asks, with the kubelet's usual most pods."""
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in service.children()}
    (asking,) = [pid for pid, name in names.items() if b"gpudiag.sampler.kubelet" in name]
    before = processor_seconds(asking)
    time.sleep(seconds)
    share = (processor_seconds(asking) - before) / seconds
    print(
        f"the process that asks, over {seconds:g} s with 103 pods: {resident_bytes(asking) / MIB:.0f} MiB, {share:.2%} of a core"
    )


if __name__ == "__main__":
    main()
