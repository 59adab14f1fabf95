"""The processor quota of a control group, as both versions write it."""

from pathlib import Path

import pytest

from gpudiag.linux.cgroup import Quota, find_processor_folders, read_processor_limit, read_quota


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"cpu.max": "150000 100000\n"}, ("cpu.max", 1.5)),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.cfs_quota_us": "3000\n", "cpu.cfs_period_us": "100000\n"}, ("cpu.cfs_quota_us", 0.03)),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.cfs_quota_us": "3000\n"}, None),
        ({}, None),
    ],
)
def test_the_limit_is_read_with_the_file_that_sets_it(
    tmp_path: Path, files: dict[str, str], limit: tuple[str, float] | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert read_processor_limit(tmp_path) == limit


def test_what_the_quota_did_is_read_of_the_group_and_of_those_above_it(tmp_path: Path) -> None:
    inner = tmp_path / "job" / "step"
    inner.mkdir(parents=True)
    (inner.parent / "cpu.stat").write_text(
        "usage_usec 5\nnr_periods 9\nnr_throttled 8\nthrottled_usec 2500000\n"
    )
    (inner / "cpu.stat").write_text("nr_periods 0\nnr_throttled 0\nthrottled_time 0\n")
    folders = find_processor_folders({"": inner})
    assert folders == [inner, inner.parent]
    assert read_quota(inner.parent) == Quota(9, 8, 2.5, str(inner.parent))
