"""NCCL's variables and CUDA's compatibility, as data."""

import pytest

from gpudiag.reference.software import (
    costly_settings,
    is_known,
    known_variables,
    minimum_driver,
    minimum_drivers,
    parse_version,
    renamed_variables,
    torch_build_for,
)


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "NCCL_DEBUG",
        "NCCL_P2P_DISABLE",
        "NCCL_NVLS_ENABLE",
        "NCCL_VERSION",
        "NCCL_OFI_PROTOCOL",
    ],
)
def test_variables_that_nccl_its_plugins_or_images_know(name: str):
    assert is_known(name)


@pytest.mark.parametrize(
    "name", ["NCCL_DEBG", "NCCL_SOCKET_IFNAMES", "NCCL_", "NCCL_LOG_WARN", "NCCL_PARAM_TYPE_I64"]
)
def test_words_that_are_no_variables(name: str):
    assert not is_known(name)


def test_what_costs_is_known_and_says_what_it_costs():
    for setting in costly_settings():
        assert setting.name in known_variables()
        assert len(setting.cost) > 15
    disabled = next(setting for setting in costly_settings() if setting.name == "NCCL_NVLS_ENABLE")
    assert disabled.covers("0")
    assert not disabled.covers("1")


def test_renamed_variables_do_not_lead_in_circles():
    assert not set(renamed_variables()) & set(renamed_variables().values())


def test_a_later_cuda_needs_a_later_driver():
    drivers = [parse_version(driver) for _, driver in sorted(minimum_drivers().items())]
    assert drivers == sorted(drivers)
    assert minimum_driver("12.8") == "525.60.13"
    assert minimum_driver("10.2") is None


@pytest.mark.parametrize(
    ("driver_cuda", "build"),
    [
        ("13.5", "cu132"),
        ("13.2", "cu132"),
        ("13.1", "cu130"),
        ("13.0", "cu130"),
        ("12.9", "cu129"),
        ("12.7", "cu126"),
        ("12.4", "cu118"),
        ("11.4", "cu118"),
    ],
)
def test_the_newest_build_that_a_driver_runs(driver_cuda: str, build: str):
    assert torch_build_for(driver_cuda) == build


@pytest.mark.parametrize(
    ("capabilities", "build"),
    [((), "cu132"), (("9.0", "7.5"), "cu132"), (("9.0", "7.0"), "cu126"), (("6.1",), "cu126")],
)
def test_newer_builds_have_no_code_for_volta_and_older(capabilities, build):
    assert torch_build_for("13.2", capabilities) == build


@pytest.mark.parametrize(
    ("text", "numbers"), [("580.105.08", (580, 105, 8)), ("13.0", (13, 0)), ("580.rc1", (580,)), ("", ())]
)
def test_versions_are_compared_by_their_numbers(text: str, numbers: tuple):
    assert parse_version(text) == numbers
