"""What the GPUs' sensors say while a test runs: a child that reads them again and again."""

import select
import time
from collections.abc import Callable
from threading import Thread
from typing import Any

from gpudiag.model.active import TelemetryPoint
from gpudiag.model.codec import decode, encode
from gpudiag.model.reading import Missing
from gpudiag.probe.guard import GuardedChild, start_guarded
from gpudiag.probe.nouns import reading_of

_SENSORS = (
    "sm_clock_mhz", "temperature_celsius", "power_draw_watts", "pcie_generation", "pcie_width",
    "clocks_event_reasons",
)  # fmt: skip


class TelemetryReader:
    """Reads every GPU's sensors from its making until `finish`."""

    def __init__(self, interval_seconds: float, started: float) -> None:
        """Start reading, that often; times count from `started` of `time.monotonic`."""
        self._child: GuardedChild = start_guarded(
            "gpudiag.runs.telemetry:stream_telemetry", interval_seconds, started
        )

    def drain(self) -> None:
        """Take what was read so far, without waiting, so that the pipe never fills up."""
        while self._child.ending is None:
            ready, _, _ = select.select(self._child.descriptors(), [], [], 0)
            if not ready:
                return
            for descriptor in ready:
                if descriptor in self._child.descriptors():
                    self._child.receive(descriptor)

    def finish(self) -> tuple[TelemetryPoint, ...]:
        """End the reading; every point that came."""
        self.drain()
        self._child.give_up()
        points = (point for message in self._child.messages if message[0] == "points" for point in message[1])
        return tuple(decode(TelemetryPoint, point) for point in points)


def stream_telemetry(emit: Callable[[Any], None], interval_seconds: float, started: float) -> None:
    """In a guarded child, until it is killed: the sensors of every GPU, one message per GPU and reading.

    Nothing else is asked while a test runs: a whole look takes a hundred calls a GPU, and each takes the
    driver's lock. A thread a GPU, so that one that hangs costs only itself.
    """
    from gpudiag.probe.nvml import load_pynvml

    pynvml = load_pynvml()
    pynvml.nvmlInit()
    threads = [
        Thread(target=_watch_gpu, args=(emit, pynvml, index, interval_seconds, started), daemon=True)
        for index in range(pynvml.nvmlDeviceGetCount())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _watch_gpu(
    emit: Callable[[Any], None], pynvml: Any, index: int, interval_seconds: float, started: float
) -> None:
    from gpudiag.probe.nvml_ask import Ask, DeviceSheet
    from gpudiag.probe.nvml_device import read_sensors

    ask = Ask(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))
    uuid = ask.text("nvmlDeviceGetUUID")
    while True:
        due = time.monotonic() + interval_seconds
        sheet = DeviceSheet()
        read_sensors(ask, sheet)
        document = sheet.document()
        at_seconds = time.monotonic() - started
        readings = {name: reading_of(document, name) for name in _SENSORS}
        reasons = readings["clocks_event_reasons"]
        told = reasons if isinstance(reasons, Missing) else tuple(reasons)
        point = TelemetryPoint(
            at_seconds=at_seconds, device_uuid=uuid, **{**readings, "clocks_event_reasons": told}
        )
        emit(("points", [encode(point)]))
        time.sleep(max(0.0, due - time.monotonic()))
