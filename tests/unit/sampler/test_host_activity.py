from pathlib import Path

import pytest

from gpudiag.model.reading import Missing, MissingReason
from gpudiag.sampler.host_activity import HostActivityReader

MEMORY = "MemTotal: 1024 kB\nMemAvailable: 256 kB\nSwapTotal: 64 kB\nSwapFree: 16 kB\n"
NETWORK = (
    "Inter-|\n face |\n    lo: {lo} 1 0 0 0 0 0 0 9 1\n  eth0: {received} 1 0 0 0 0 0 0 {sent} 1\n"
    "docker0: 77 0 0 0 0 0 0 0 7 0\n"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("proc/net", "sys/class/net/eth0/device", "sys/class/block/sda/device"):
        (tmp_path / folder).mkdir(parents=True)
    write(tmp_path)
    return tmp_path


def write(
    root: Path, busy: int = 100, idle: int = 100, received: int = 0, sent: int = 0, read: int = 0
) -> None:
    (root / "proc/stat").write_text(f"cpu  {busy} 0 0 {idle} 50 0 0 0 0 0\ncpu0 1\nintr 1\n")
    (root / "proc/meminfo").write_text(MEMORY)
    (root / "proc/loadavg").write_text("1.50 1 1 1/2 3\n")
    (root / "proc/uptime").write_text("86400.25 99.00\n")
    (root / "proc/net/dev").write_text(NETWORK.format(lo=received * 9, received=received, sent=sent))
    disks = (
        f"   8 0 sda 1 0 {read} 1 1 0 4 1 0 0 0\n   8 1 sda1 1 0 {read} 1 1 0 4 1 0 0 0\n"
        f"   7 0 loop0 1 0 {read} 1 1 0 0 0 0\n"
    )
    (root / "proc/diskstats").write_text(disks)


def test_rates_are_means_between_two_looks(root: Path):
    reader = HostActivityReader(str(root))
    first = reader.read(10.0)
    assert first.disk_read_bytes_per_second == Missing(
        MissingReason.NOT_ASKED, "a mean between two looks, of which this was the first"
    )
    assert (first.memory_total_bytes, first.memory_available_bytes, first.swap_used_bytes) == (
        1 << 20,
        1 << 18,
        48 << 10,
    )
    assert first.load_average == 1.5
    assert first.uptime_seconds == 86400.25
    write(root, busy=160, idle=140, received=4000, sent=2000, read=8)
    second = reader.read(12.0)
    assert second.processors_busy_percent == 60.0
    assert second.processors_waiting_percent == 0.0
    assert second.network_received_bytes_per_second == 2000  # neither the loopback nor a bridge
    assert second.network_transmitted_bytes_per_second == 1000
    assert second.disk_read_bytes_per_second == 8 * 512 / 2  # neither the partition nor a loop device
    assert second.disk_written_bytes_per_second == 0


def test_what_the_kernel_does_not_show_costs_only_itself(root: Path):
    reader = HostActivityReader(str(root))
    (root / "proc/diskstats").unlink()
    (root / "proc/meminfo").write_text("MemTotal: 1024 kB\n")
    reader.read(10.0)
    activity = reader.read(12.0)
    assert isinstance(activity.disk_read_bytes_per_second, Missing)
    assert isinstance(activity.memory_available_bytes, Missing)
    assert activity.memory_total_bytes == 1 << 20
    # No tick was counted since: no share of nothing.
    assert isinstance(activity.processors_busy_percent, Missing)
    assert activity.network_received_bytes_per_second == 0


def test_a_container_whose_interfaces_have_no_hardware_has_their_traffic(root: Path):
    (root / "sys/class/net/eth0/device").rmdir()
    reader = HostActivityReader(str(root))
    reader.read(10.0)
    write(root, received=100)
    assert reader.read(11.0).network_received_bytes_per_second == 100
