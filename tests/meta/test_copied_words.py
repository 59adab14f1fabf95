"""Copies of the vocabulary that Python cannot read from it: the page's, the alerts', the contract of the
service.
"""

import re
from pathlib import Path

from gpudiag.model.reading import MissingReason
from gpudiag.reference.vocabulary import EVENT_REASONS, FAULT_REASONS
from tools import write_model
from tools.write_vocabulary import PAGE, page_text

_ROOT = Path(__file__).parents[2]
_SEARCHED = ("gpudiag", "api/gpudiag_api", "api/dashboard/src", "tools")
_HOMES = ("gpudiag/reference/vocabulary.py", "api/dashboard/src/vocabulary.ts")


def test_the_page_has_every_reason() -> None:
    assert PAGE.read_text() == page_text(), "run: python -m tools.write_vocabulary"


def test_the_page_has_the_types_of_the_documents() -> None:
    assert write_model.SCRIPT.read_text() == write_model.script_text(), "run: make pages"


def test_the_page_has_a_word_for_every_reason_of_a_missing_reading() -> None:
    [table] = re.findall(
        r"^const REASONS: .*?\{$(.*?)^\};$",
        (_ROOT / "api/dashboard/src/format.ts").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert re.findall(r"^  (\w+):", table, re.MULTILINE) == [reason.value for reason in MissingReason]


def test_the_alert_on_slow_gpus_names_the_faults() -> None:
    rules = (_ROOT / "deploy/prometheus/gpudiag.rules.yml").read_text()
    [named] = re.findall(r'gpudiag_gpu_throttle_active\{reason=~"([^"]+)"\}', rules)
    assert set(named.split("|")) == set(FAULT_REASONS)


def test_the_contract_of_the_service_names_the_bits_in_order() -> None:
    text = " ".join((_ROOT / "docs/api.md").read_text().split())
    [bits] = re.findall(r"`clocks_event_mask` \(bits in the order ([a-z_, ]+)\)", text)
    assert tuple(bits.split(", ")) == EVENT_REASONS
    [throttled] = re.findall(r"`throttled` is true when [^(]+\(([^)]+)\)", text)
    assert tuple(re.findall(r"`(\w+)`", throttled)) == FAULT_REASONS


def test_no_other_file_lists_the_words() -> None:
    """Words that no check judges by name: where one stands, a list of its own stands."""
    tell_tales = ("recover_imex_domain", "system_reboot", "display_clocks_setting", "total_app_clocks")
    for folder in _SEARCHED:
        for path in sorted((_ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".ts", ".tsx", ".toml") and str(path.relative_to(_ROOT)) not in _HOMES:
                text = path.read_text()
                assert not [word for word in tell_tales if word in text], path
