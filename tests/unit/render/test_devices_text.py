from dataclasses import replace
from typing import Any

import pytest

from gpudiag.model.device import Device, MigInstance, Snapshot
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.render.devices_text import render_devices, short_command
from gpudiag.render.style import PLAIN, Style, columns
from gpudiag.render.wide_text import render_wide
from gpudiag.units import GIB
from tests.unit.checks.machines import make_bare_machine
from tests.unit.model.nouns import NOT_SUPPORTED, make_snapshot
from tests.unit.render.rows import LATE, LOST, judge, make_busy, make_idle, make_process, make_silent

TABLE = """\
GPU NAME        MEM GiB UTIL TEMP POWER W USER/COMMAND    STATE
  0 H100 80GB 66.3/79.6  98%  61C 640/700 ann train.py 6h ok
  1 H100 80GB  0.0/79.6   0%  29C  69/700 -               ok
  3 H100 80GB         -    -    -       - -               LOST [1]
[1] GPU 3 (1c:00.0) is off the bus: GPU is lost (NVML 15) (GPU-3). Drain the
    machine and power-cycle it; if the GPU is lost again, have it replaced.
Free: GPU 1.  --wide: UUID, slot, clocks, ECC  --free N --ids
"""


def render(*devices: Device, style: Style | None = None, **values: Any) -> str:
    snapshot = make_snapshot(*devices, **values)
    return render_devices(snapshot, *judge(snapshot), style or Style())


def test_the_table_of_a_machine_with_a_busy_an_idle_and_a_lost_gpu() -> None:
    assert render(make_busy(0), make_idle(1), make_silent(3, LOST)) == TABLE


def test_a_hung_gpu_is_the_last_row_and_the_others_keep_their_readings() -> None:
    rows = render(make_busy(0), make_idle(7), make_silent(6, LATE)).splitlines()[1:4]
    assert [row.split()[0] for row in rows] == ["0", "7", "6"]
    assert "98%" in rows[0]
    assert "HUNG [1]" in rows[2]


@pytest.mark.parametrize("reason", list(MissingReason))
def test_a_reading_that_is_not_there_is_a_dash_with_its_reason_under_the_table(reason: MissingReason) -> None:
    text = render(make_idle(0, temperature_celsius=Missing(reason, "NVML's words")))
    assert "-[1]" in text
    assert "[1] TEMP: " in text
    assert "NVML's words" in text


def test_memory_of_which_only_the_total_is_known_says_why() -> None:
    text = render(make_idle(0, memory_used_bytes=NOT_SUPPORTED))
    assert "-/79.6[1]" in text
    assert "[1] MEM used: " in text


def test_a_board_is_named_once_whatever_is_wrong_with_it() -> None:
    text = render(make_idle(0, recovery_action="gpu_reset", ecc_uncorrected_volatile=3))
    assert " ".join(text.split()).count("serial 1650000000000") == 1


def test_the_same_reason_on_eight_gpus_is_one_note() -> None:
    text = render(*(make_idle(place, power_draw_watts=NOT_SUPPORTED) for place in range(8)))
    assert text.count("POWER W: ") == 1
    assert text.count("-[1]") == 8


@pytest.mark.parametrize("reason", list(MissingReason))
def test_a_gpu_that_gives_nothing_is_never_ok(reason: MissingReason) -> None:
    silent = make_silent(0, Missing(reason))
    row = render(silent).splitlines()[1]
    assert "ok" not in row.split()


def test_a_fault_that_is_about_no_row_is_said_under_the_table() -> None:
    text = render(make_idle(0), machine=make_bare_machine(gpus=2))
    assert "1a:00.0 is on the PCI bus" in text


def test_mig_instances_stand_under_their_gpu() -> None:
    instances = tuple(
        MigInstance(f"MIG-{place}", "NVIDIA H100 MIG 1g.10gb", place, 0, 10 * GIB, GIB, 9 * GIB)
        for place in (7, 8)
    )
    rows = render(make_idle(0, mig_mode="enabled", mig_instances=instances)).splitlines()
    assert [row.split()[0] for row in rows[1:4]] == ["0", "0:0", "0:1"]
    assert rows[2].split()[1:4] == ["MIG", "1g.10gb", "1.0/10.0"]
    assert rows[-1].startswith("Free: none.")  # a tenth of each is in use


def test_a_simulated_machine_says_so_first() -> None:
    for text in (
        render(make_idle(0), simulated="h100x8"),
        wide(make_snapshot(make_idle(0), simulated="h100x8")),
    ):
        assert text.startswith("SIMULATED h100x8:")


def test_nothing_is_wider_than_the_terminal() -> None:
    long = make_process(command="python -m a.package.with.a.very.long.name." + "x" * 200)
    devices = [make_idle(place, name="NVIDIA " + "N" * 90, processes=(long, long)) for place in range(3)]
    text = render(*devices, make_silent(3, LOST), simulated="h100x8+lost:3")
    assert max(len(line) for line in text.splitlines()) <= columns()
    assert all("ok" in line for line in text.splitlines()[2:5])


def test_colours_are_written_only_where_they_are_wanted() -> None:
    assert "\x1b[" not in render(make_silent(0, LOST))
    coloured = render(make_idle(0), make_silent(1, LOST), style=Style(colour=True)).splitlines()
    assert coloured[1].startswith("  0 ")
    assert coloured[2].startswith("\x1b[31m  1 ")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --epochs 3", "train.py"),
        ("/usr/bin/python3.11 -u /home/ann/train.py", "train.py"),
        ("/usr/bin/python3", "python3"),
        ("/opt/app/server --port 1", "server"),
        ("", ""),
    ],
)
def test_a_command_is_known_by_its_script(command: str, name: str) -> None:
    assert short_command(command) == name


def wide(snapshot: Snapshot, style: Style = PLAIN) -> str:
    return render_wide(snapshot, *judge(snapshot), style)


def test_verbose_wide_says_every_reading_or_why_it_is_not_there() -> None:
    text = " ".join(wide(make_snapshot(make_idle(0)), Style(verbose=True)).split())
    assert "fan speed" in text
    assert "CUDA ordinal" in text.split("(it was not")[0]


def test_wide_counts_what_it_leaves_out() -> None:
    text = wide(make_snapshot(make_idle(0)))
    assert "fan speed" not in text
    assert "readings that are not reported here" in " ".join(text.split())


def test_wide_tells_a_reading_that_should_have_come_and_a_setting_that_differs() -> None:
    device = replace(
        make_idle(0),
        temperature_celsius=Missing(MissingReason.TIMED_OUT),
        ecc_mode="enabled",
        ecc_mode_pending="disabled",
        row_remap_failed=True,
        row_remap_pending=False,
    )
    text = wide(make_snapshot(device))
    assert "temperature (no answer by the deadline)" in text
    assert "pending disabled" in text
    assert "remap pending no, failed yes" in text


def test_wide_says_why_a_gpu_is_not_free() -> None:
    text = wide(make_snapshot(make_busy(0), make_idle(1)))
    assert "Free: GPU 1." in text
    assert "Not free: GPU 0: 1 compute process" in text


def test_wide_keeps_to_the_terminal_and_shows_a_lost_gpu_as_who_it_is() -> None:
    text = wide(make_snapshot(make_busy(0), make_silent(1, LOST)))
    assert max(len(line) for line in text.splitlines()) <= columns()
    assert "GPU-1, 00000000:1a:00.0" in text
