"""Comparison among few: a majority needs two votes and more than half, else all are named, nobody blamed."""

import pytest

from gpudiag.checks.gpu.board import gpu_model
from gpudiag.checks.gpu.settings import clocks_application, power_limit
from gpudiag.checks.majority import majority_of
from gpudiag.checks.runner import run_checks
from gpudiag.checks.software.driver import driver_firmware
from gpudiag.model.context import Context
from gpudiag.model.evidence import DeviceSubject, HostSubject
from gpudiag.model.reading import Missing, MissingReason
from tests.unit.model.nouns import make_device, make_snapshot
from tests.walking import walk

UNKNOWN = Missing(MissingReason.NOT_SUPPORTED)
H100, H100_PCIE, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA A100-SXM4-80GB"


@walk(
    [
        *(("", None), ("a", None), ("aa", "a"), ("ab", None), ("aab", "a"), ("aabb", None), ("aabc", None)),
        *(("aaabc", "a"), ("abcd", None), ("aaaaaaab", "a")),
    ]
)
def test_a_majority_is_two_at_least_and_more_than_half(case):
    values, expected = case
    assert majority_of(values) == expected
    assert majority_of((*values, UNKNOWN, UNKNOWN, UNKNOWN)) == expected


def findings(check, *devices):
    return [
        finding
        for result in run_checks(Context(make_snapshot(*devices)), (check,))
        for finding in result.findings
    ]


def blamed(found):
    return [finding.subject.nvml_index for finding in found if isinstance(finding.subject, DeviceSubject)]


def with_setting(setting, values):
    """A GPU for each letter of `values`, that differ in one setting, at its own default."""
    check, fields, by_letter = setting
    return check, [
        make_device(index, name=H100, **dict.fromkeys(fields, by_letter[letter]))
        for index, letter in enumerate(values)
    ]


SETTINGS = {
    "VBIOS": (driver_firmware, ("vbios_version",), {"a": "96.01", "b": "96.02", "c": "96.03"}),
    "InfoROM": (driver_firmware, ("inforom_version",), {"a": "G1", "b": "G2", "c": "G3"}),
    "power limit": (
        power_limit,
        ("power_limit_enforced_watts", "power_limit_default_watts"),
        {"a": 700.0, "b": 500.0, "c": 300.0},
    ),
    "application clock": (
        clocks_application,
        ("graphics_clock_application_mhz", "graphics_clock_application_default_mhz"),
        {"a": 1980, "b": 1755, "c": 1500},
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("values", ["ab", "ba", "abab", "aabb", "abc", "aabbcc"])
def test_without_a_majority_one_finding_names_all_and_blames_none(name, values):
    check, devices = with_setting(SETTINGS[name], values)
    (found,) = findings(check, *devices)
    assert isinstance(found.subject, HostSubject)
    assert "most" not in found.message
    for device in devices:
        assert f"GPU {device.id.nvml_index}" in found.message
    for letter in set(values):
        assert str(SETTINGS[name][2][letter]).removesuffix(".0") in found.message


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(
    ("values", "odd"), [("aab", [2]), ("aaaaaaab", [7]), ("aaabc", [3, 4]), ("abaa", [1])]
)
def test_with_a_majority_only_the_others_are_blamed(name, values, odd):
    check, devices = with_setting(SETTINGS[name], values)
    found = findings(check, *devices)
    assert blamed(found) == odd
    assert len(found) == len(odd)
    assert all("most others have" in finding.message for finding in found)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("values", ["a", "aa", "aaaaaaaa"])
def test_equal_gpus_are_no_finding(name, values):
    check, devices = with_setting(SETTINGS[name], values)
    assert findings(check, *devices) == []


@pytest.mark.parametrize("name", SETTINGS)
def test_cards_of_two_makers_are_not_compared(name):
    check, fields, by_letter = SETTINGS[name]
    cards = [
        make_device(index, name=H100, pci_subsystem_id=maker, **dict.fromkeys(fields, by_letter[letter]))
        for index, (letter, maker) in enumerate((("a", "10de1458"), ("b", "40191458")))
    ]
    assert findings(check, *cards) == []


def test_of_two_one_below_its_own_default_is_the_one_to_blame():
    devices = [
        make_device(index, name=H100, power_limit_default_watts=700.0, power_limit_enforced_watts=watts)
        for index, watts in enumerate((400.0, 700.0))
    ]
    (found,) = findings(power_limit, *devices)
    assert (found.code, blamed([found])) == ("power.limit_lowered", [0])


def models(*names, **readings):
    return [
        make_device(index, name=name, memory_kind="dedicated", **readings) for index, name in enumerate(names)
    ]


@pytest.mark.parametrize(
    ("names", "odd"),
    [
        ([H100] * 7 + [H100_PCIE], [7]),
        ([H100_PCIE] + [H100] * 7, [0]),
        ([H100] * 6 + [A100, H100_PCIE], [6, 7]),
        ([A100] * 3 + [H100], [3]),
        ([H100, UNKNOWN, *[H100] * 5, A100], [7]),
    ],
)
def test_one_other_model_among_many_is_named(names, odd):
    found = findings(gpu_model, *models(*names))
    assert [finding.code for finding in found] == ["gpu.model_differs"] * len(odd)
    assert blamed(found) == odd
    assert str(names[odd[0]]) in found[0].message


@pytest.mark.parametrize("names", [
    [H100], [H100] * 8, [H100, A100], [H100] * 4 + [A100] * 4, [H100, H100, A100],  # mixed by intent
    [A100] * 4 + ["NVIDIA DGX Display"], [H100] * 4 + ["NVIDIA T400 4GB RTX"],
    ["NVIDIA GeForce RTX 3090"] * 7 + ["NVIDIA GeForce RTX 3060"],
    ["NVIDIA A10-24Q"] * 4 + ["NVIDIA A10-12Q"],
])  # fmt: skip
def test_equal_mixed_and_display_gpus_are_no_finding(names):
    assert findings(gpu_model, *models(*names)) == []
