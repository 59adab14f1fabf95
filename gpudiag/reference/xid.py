"""The meaning and remedy of each Xid of a GPU and SXid of an NVSwitch, from the catalogues here."""

from dataclasses import dataclass
from functools import cache

from gpudiag.compat import StrEnum
from gpudiag.model.finding import Outcome
from gpudiag.model.remedy import fit_remedy
from gpudiag.reference.tables import read_table

# The next action where one did not help: restart, reset, power cycle, replace.
_LADDER = ("restart_application", "reset_gpu", "restart_machine", "contact_support")
_SAME_RUNG = {
    "reset_linked_gpus": "reset_gpu",
    "restart_virtual_machine": "restart_machine",
    "check_mechanics": "restart_machine",  # the machine was off, and a hand was at the board
    "check_links": "restart_machine",
}


class XidKind(StrEnum):
    """The kind of an Xid: who must deal with it."""

    APPLICATION = "application"
    HARDWARE = "hardware"
    DRIVER = "driver"
    SYMPATHETIC = "sympathetic"  # follows another Xid
    INFORMATIONAL = "informational"


WHO_IS_AT_FAULT = {
    XidKind.HARDWARE: "the GPU or the machine",
    XidKind.APPLICATION: "the job's own code; the GPU is fine",
    XidKind.DRIVER: "the driver or its firmware",
    XidKind.SYMPATHETIC: "another Xid of the same burst",
    XidKind.INFORMATIONAL: "nobody: for information",
}


@dataclass(frozen=True, slots=True)
class Xid:
    """One code of the catalogue; `immediate` and `then` are names of `action_text`.

    `stated_by` are the codes of findings by which NVML states the same fault, best first; `lasting`: neither
    a reset nor a reboot clears it.
    """

    code: int
    meaning: str
    kind: XidKind
    outcome: Outcome
    nonfatal_outcome: Outcome  # where the line itself has "Nonfatal"
    immediate: str
    then: str
    note: str
    stated_by: tuple[str, ...] = ()
    lasting: bool = False


@cache
def xids() -> dict[int, Xid]:
    """Every code of the catalogue."""
    return {
        code: Xid(
            code=code,
            meaning=entry["meaning"],
            kind=XidKind(entry["kind"]),
            outcome=Outcome(entry["outcome"]),
            nonfatal_outcome=Outcome(entry.get("nonfatal_outcome", entry["outcome"])),
            immediate=entry["immediate"],
            then=entry["then"],
            note=entry["note"],
            stated_by=tuple(entry.get("stated_by", ())),
            lasting=entry.get("lasting", False),
        )
        for entry in read_table("xid.toml")["xid"]
        for code in entry["codes"]
    }


def xid_source() -> str:
    """The source of the catalogue, and its date."""
    table = read_table("xid.toml")
    return f"{table['source']}, {table['source_date']}"


def action_text(action: str) -> str:
    """What to do for an action of the catalogue on bare metal, as a sentence.

    Raises KeyError: there is no such action.
    """
    return fit_remedy(written_action(action))


def written_action(action: str) -> str:
    """The same as it is written, with its steps marked as `model/remedy.py` describes."""
    text: str = read_table("xid.toml")["actions"][action]
    return text


def escalated(action: str) -> str:
    """The next action where this one was taken and the same Xid came back."""
    rung = _SAME_RUNG.get(action, action)
    place = _LADDER.index(rung) if rung in _LADDER else -1
    return _LADDER[min(place + 1, len(_LADDER) - 1)]


@dataclass(frozen=True, slots=True)
class NvLink5Decode:
    """Where to look, by some subcodes of one NVLink 5 unit."""

    unit: str  # how the unit's name begins
    subcodes: tuple[int, ...]
    advice: str


def nvlink5_decodes() -> tuple[NvLink5Decode, ...]:
    """Every rule, in the table's order."""
    entries = read_table("nvlink5.toml")["decode"]
    return tuple(NvLink5Decode(entry["unit"], tuple(entry["subcodes"]), entry["advice"]) for entry in entries)


def nvlink5_advice(unit: str, subcode: int) -> str | None:
    """Where to look for the cause of an NVLink 5 error; None where its subcode does not show it."""
    for rule in nvlink5_decodes():
        if unit.upper().startswith(rule.unit) and subcode in rule.subcodes:
            return rule.advice
    return None


def nvlink5_bucket(unit: str, subcode: int, error: int | None) -> str | None:
    """`reset`, `look_elsewhere` or `watch`: overrides the severity in the log line; None: keep it."""
    for rule in read_table("nvlink5.toml")["resolution"]:
        known = error in rule["errors"] if "errors" in rule else subcode in rule["subcodes"]
        if unit.upper().startswith(rule["unit"]) and known:
            bucket: str = rule["bucket"]
            return bucket
    return None


class SXidClass(StrEnum):
    """How bad an NVSwitch error is, as the Fabric Manager User Guide groups them."""

    ALWAYS_FATAL = "always_fatal"
    FATAL = "fatal"  # where a GPU sees it too
    DISTURBING = "disturbing"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class SXid:
    """One code of the catalogue."""

    code: int
    meaning: str
    sxid_class: SXidClass
    written_remedy: str  # as `model/remedy.py` describes


@cache
def sxids() -> dict[int, SXid]:
    """Every code of the catalogue."""
    table = read_table("sxid.toml")
    return {
        code: SXid(code, entry["meaning"], SXidClass(entry["class"]), table["remedies"][entry["class"]])
        for entry in table["sxid"]
        for code in entry["codes"]
    }


def sxid_source() -> str:
    """The source of the catalogue, and its date."""
    table = read_table("sxid.toml")
    return f"{table['source']}, {table['source_date']}"
