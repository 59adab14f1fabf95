"""What the GPUs' sensors say while a test runs: a child that reads them again and again."""

import select
import time
from collections.abc import Callable
from typing import Any

from gpudiag.model.active import TelemetryPoint
from gpudiag.model.codec import decode, encode
from gpudiag.model.reading import Missing
from gpudiag.probe.guard import GuardedChild, start_guarded

_DEADLINE_SECONDS = 2.0  # of one reading: a GPU that hangs under load is the test's to find


class TelemetryReader:
    """Reads every GPU's sensors from its making until `finish`."""

    def __init__(self, interval_seconds: float) -> None:
        """Start reading, that often."""
        self._child: GuardedChild = start_guarded("gpudiag.runs.telemetry:stream_telemetry", interval_seconds)

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


def stream_telemetry(emit: Callable[[Any], None], interval_seconds: float) -> None:
    """In a guarded child, until it is killed: the sensors of every GPU, one message per reading."""
    from gpudiag.probe.inventory import take_snapshot

    started = time.monotonic()
    while True:
        due = time.monotonic() + interval_seconds
        snapshot = take_snapshot(("nvml",), _DEADLINE_SECONDS)
        at_seconds = time.monotonic() - started
        points = [
            TelemetryPoint(
                at_seconds=at_seconds,
                device_uuid=device.id.uuid,
                sm_clock_mhz=device.sm_clock_mhz,
                temperature_celsius=device.temperature_celsius,
                power_draw_watts=device.power_draw_watts,
                pcie_generation=device.pcie_generation,
                pcie_width=device.pcie_width,
                clocks_event_reasons=device.clocks_event_reasons,
            )
            for device in snapshot.devices
            if not isinstance(device.id.uuid, Missing)
        ]
        emit(("points", [encode(point) for point in points]))
        time.sleep(max(0.0, due - time.monotonic()))
