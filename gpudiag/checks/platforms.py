"""The words of a remedy on the platform that it is read on: who can cut the power of a GPU, and from where.

The catalogue's remedies are for bare metal. In a virtual machine, a container or WSL nobody can reseat a card
or cut its power, and a Jetson board has no GPU to reset: there the same act has another name and another
place.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from gpudiag.compat import StrEnum
from gpudiag.model.device import Snapshot
from gpudiag.model.finding import CheckResult, Finding, Outcome
from gpudiag.model.host import Machine
from gpudiag.model.reading import Missing


class Platform(StrEnum):
    """Where gpudiag runs, as far as it decides who can do what."""

    BARE_METAL = "bare metal"
    GUEST = "a virtual machine"
    CONTAINER = "a container"
    WSL = "WSL"
    JETSON = "a Jetson board"


def platform_of(snapshot: Snapshot) -> Platform:
    """The platform of a machine; bare metal where nothing shows another one."""
    machine = snapshot.machine
    if isinstance(machine, Missing):
        return Platform.BARE_METAL
    kernel = "" if isinstance(machine.kernel_release, Missing) else machine.kernel_release.lower()
    nodes = () if isinstance(machine.device_nodes, Missing) else machine.device_nodes
    if "/dev/dxg" in nodes or "microsoft-standard" in kernel:
        return Platform.WSL
    if machine.container is not None:
        return Platform.CONTAINER
    if "tegra" in kernel:
        return Platform.JETSON
    return Platform.GUEST if _is_guest(machine) else Platform.BARE_METAL


def _is_guest(machine: Machine) -> bool:
    state = machine.state
    if isinstance(state, Missing) or isinstance(state.processor_layout, Missing):
        return False
    return state.processor_layout.virtual_machine


_POWER_CYCLE = re.compile(
    r"\b(?P<drain>drain the (?:machine|GPU) and )?power-cycle (?:the machine|it)", re.IGNORECASE
)
_RESET = re.compile(
    r"\breset (?:it|the GPU|all GPUs of the machine together)(?P<rest> when it is next free)?"
    r"(?: \(`[^`]*`[^)]*\)|: `nvidia-smi [^`]*`(?:, or reboot the machine)?)?",
    re.IGNORECASE,
)
_POWER_WORDS = {
    Platform.GUEST: (
        "stop this virtual machine and start it from its host (a reboot inside of it is not enough)"
    ),
    Platform.CONTAINER: "have the host drained and power-cycled",
    Platform.WSL: "shut Windows down and take the power away for a minute",
    Platform.JETSON: "shut the board down and take the power away for a minute",
}
_RESET_WORDS = {
    Platform.WSL: "run `wsl --shutdown` on Windows, then restart Windows",
    Platform.JETSON: "reboot the board",
}
# Beside a reset that has another name: its command, and the reboot that would do as well.
_OTHER_WAYS = re.compile(
    r" \(`nvidia-smi (?:-i \S+ )?-r`[^)]*\)|(?:,| ) ?or reboot(?: the machine)?\b|"
    r"; reboot the machine where that is refused"
)
# What can only be done at the hardware, or from the host.
_AT_THE_HARDWARE = re.compile(
    r"\b(?:reseat|riser|replace|replaced|fans|airflow|power suppl|connector|BMC|ipmitool)", re.IGNORECASE
)
_FROM_THE_HOST = re.compile(
    r"\b(?:reboot|reset|modprobe|rmmod|reload the driver|driver update|systemctl|nvidia-persistenced|"
    r"smartctl)\b"
    r"|/etc/modprobe\.d|kernel's command line|nvidia-smi (?:-i \S+ )?-(?:pm|pl|mig|rac|rgc|r|-gpu-reset)\b|"
    r"fabric manager",
    re.IGNORECASE,
)
# Of the driver in the kernel and its services, which WSL does not have: they are Windows'.
_OF_THE_KERNEL = re.compile(
    r"\b(?:modprobe|rmmod|nouveau|nvidia-persistenced|nvidia-fabricmanager|fabric manager)\b|"
    r"/etc/modprobe\.d|NVreg_",
    re.IGNORECASE,
)
_WINDOWS_DRIVER = (
    "On Windows: update the NVIDIA driver, then WSL (`wsl --update`), and run `wsl --shutdown`."
    " WSL has no kernel module and no service of NVIDIA's."
)
_PLACES = {
    Platform.GUEST: "For the administrator of this virtual machine's host, or its provider: ",
    Platform.CONTAINER: "On the host, outside of this container: ",
    Platform.WSL: "On Windows and its hardware: ",
}


def fit_remedy(remedy: str, platform: Platform) -> str:
    """The remedy as it can be done on a platform; the catalogue's own on bare metal."""
    if platform is Platform.WSL and _OF_THE_KERNEL.search(remedy):
        return _WINDOWS_DRIVER
    fitted = _POWER_CYCLE.sub(lambda match: _as_begun(match[0], _POWER_WORDS.get(platform, match[0])), remedy)
    fitted = _RESET.sub(lambda match: _as_begun(match[0], _reset_words(match, platform)), fitted)
    if fitted != remedy and platform in _RESET_WORDS:
        fitted = _OTHER_WAYS.sub("", fitted)
    is_elsewhere = _AT_THE_HARDWARE.search(fitted) or (
        platform is Platform.CONTAINER and _FROM_THE_HOST.search(fitted)
    )
    place = _PLACES.get(platform, "") if is_elsewhere else ""
    return f"{place}{_lowered(fitted)}" if place and not fitted.startswith(place) else fitted


def _reset_words(match: re.Match[str], platform: Platform) -> str:
    words = _RESET_WORDS.get(platform)
    return match[0] if words is None else f"{words}{match['rest'] or ''}"


def fit_results(results: tuple[CheckResult, ...], platform: Platform) -> tuple[CheckResult, ...]:
    """The results with every remedy as it can be done on a platform."""
    if platform is Platform.BARE_METAL:
        return results
    return tuple(
        replace(result, findings=fit_findings(result.findings, platform)) if result.findings else result
        for result in results
    )


def fit_findings(findings: Sequence[Finding], platform: Platform) -> tuple[Finding, ...]:
    """The findings with every remedy as it can be done on a platform."""
    return tuple(_fitted(finding, platform) for finding in findings)


def _fitted(finding: Finding, platform: Platform) -> Finding:
    if finding.outcome is Outcome.PASS:
        return finding
    return replace(finding, remedy=fit_remedy(finding.remedy, platform))


def _as_begun(original: str, words: str) -> str:
    """The words with a capital where what they replace had one."""
    return f"{words[0].upper()}{words[1:]}" if original[:1].isupper() else words


def _lowered(text: str) -> str:
    """The text as the second half of a sentence: `NVLink` and `Xid` keep their capital."""
    return (
        f"{text[0].lower()}{text[1:]}"
        if text[:1].isupper() and text[1:2].islower() and text[:3] != "Xid"
        else text
    )
