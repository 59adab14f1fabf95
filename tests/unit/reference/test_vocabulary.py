"""The words for NVML's enumerations, against the constants of NVML's own header."""

import pytest

from gpudiag.reference import vocabulary
from gpudiag.reference.nvml import constant, constants_with_prefix
from tests.walking import walk

# Our words where they are not NVML's, for brevity or because NVML's says less.
_OTHER_WORDS = (
    {"nvidia_vapps": "vapps", "nvidia_vpc": "vpc", "nvidia_vcs": "vcs"}
    | {"nvidia_vws": "vws", "nvidia_cloud_gaming": "cloud_gaming"}
    | {"nvidia_vgaming": "cloud_gaming", "nvidia_dla": "dla", "nvidia_vgamedev": "vgamedev"}
    | {"nvidia_npu": "npu", "ioh_topology_not_supported": "topology_not_supported"}
    | {"chipset_not_suppored": "chipset_not_supported", "disabled_by_regkey": "disabled"}
)
_TABLES = {
    "NVML_GPU_RECOVERY_ACTION_": vocabulary.RECOVERY_ACTIONS,
    "NVML_COMPUTEMODE_": vocabulary.COMPUTE_MODES,
    "NVML_DEVICE_ARCH_": vocabulary.ARCHITECTURES,
    "NVML_BRAND_": vocabulary.BRANDS,
    "NVML_GPU_FABRIC_STATE_": vocabulary.FABRIC_STATES,
    "NVML_GPU_FABRIC_HEALTH_SUMMARY_": vocabulary.FABRIC_HEALTH,
    "NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_": vocabulary.FABRIC_MISCONFIGURATIONS,
    "NVML_P2P_STATUS_": vocabulary.PEER_STATUSES,
}
# Of NVML's tables: their size, and what is no word of ours.
_NO_VALUES = {"count", "unknown", "not_supported", "none"}


@walk(_TABLES)
def test_every_value_of_nvml_has_its_word(prefix: str) -> None:
    words = _TABLES[prefix]
    for name, number in constants_with_prefix(prefix).items():
        if name not in _NO_VALUES:
            assert vocabulary.word_of(words, number) == _OTHER_WORDS.get(name, name)


def test_every_bit_of_the_event_reasons_has_its_word() -> None:
    masks = {
        **constants_with_prefix("nvmlClocksThrottleReason"),
        **constants_with_prefix("nvmlClocksEventReason"),
    }
    words = {reason.replace("_", "").rstrip("s"): reason for reason in vocabulary.EVENT_REASONS}
    words["displayclocksetting"], words["userdefinedclock"] = (
        "display_clocks_setting",
        "applications_clocks_setting",
    )
    for name, mask in masks.items():
        if name not in ("all", "none", "unknown"):
            assert vocabulary.reasons_of(mask) == [words[name.rstrip("s")]], name


@pytest.mark.parametrize(
    ("numbers", "prefix"),
    [
        (vocabulary.PERFORMANCE_LIMITS, "NVML_PERF_POLICY_"),
        (vocabulary.FABRIC_FAULTS, "NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_"),
    ],
)
def test_numbers_with_gaps_are_nvmls(numbers: dict[str, int], prefix: str) -> None:
    assert numbers == {word: constant(f"{prefix}{word.upper()}") for word in numbers}


def test_paths_between_gpus_are_nvmls() -> None:
    assert set(vocabulary.PEER_PATHS.values()) == set(constants_with_prefix("NVML_TOPOLOGY_").values())


def test_a_word_and_its_number_go_both_ways() -> None:
    for words in (*_TABLES.values(), vocabulary.ENABLE_STATES, vocabulary.EVENT_REASONS):
        for number in range(len(words) + 3):
            word = vocabulary.word_of(words, number)
            assert vocabulary.number_of(words, word) == number
    for mask in (0, 0b1, 0b1011, 1 << 19 | 1):
        assert vocabulary.reason_mask(tuple(vocabulary.reasons_of(mask))) == mask
