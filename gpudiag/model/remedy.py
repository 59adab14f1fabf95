"""A remedy as it is written, with the steps that depend on where it is read, and as it is done on a platform.

It is written for bare metal. In a virtual machine, a container or WSL nobody can reseat a card or cut its
power, and a Jetson board has no GPU to reset: there the same act has another name and another place. So each
such step is marked where the remedy is written:

    [hardware] reseat the card        a step at the machine itself
    [host] `nvidia-smi -pm 1`         a step of who administers the host
    [driver] `sudo modprobe nvidia`   a step at the kernel's modules, or at NVIDIA's services
    [reset: reset it (`...`)]         the words on bare metal, in whose place a platform may have its own
    [power cycle: power-cycle it]     the same

INDEX is the GPU that the remedy is about.
"""

import re

from gpudiag.compat import StrEnum
from gpudiag.model.evidence import DeviceSubject, Subject
from gpudiag.model.host import Machine
from gpudiag.model.reading import Missing


class Platform(StrEnum):
    """Where gpudiag runs, as far as it decides who can do what."""

    BARE_METAL = "bare metal"
    GUEST = "a virtual machine"
    CONTAINER = "a container"
    WSL = "WSL"
    JETSON = "a Jetson board"


class Step(StrEnum):
    """What a step of a remedy is done at, or what is done."""

    HARDWARE = "hardware"
    HOST = "host"
    DRIVER = "driver"
    RESET = "reset"
    POWER_CYCLE = "power cycle"


_MARK = re.compile(rf"\[({'|'.join(Step)})(?:: ([^\]]*)\]|\] )")
# Where the same act has another name.
_OWN_WORDS = {
    (Platform.GUEST, Step.POWER_CYCLE): (
        "stop this virtual machine and start it from its host (a reboot inside of it is not enough)"
    ),
    (Platform.CONTAINER, Step.POWER_CYCLE): "have the host drained and power-cycled",
    (Platform.WSL, Step.POWER_CYCLE): "shut Windows down and take the power away for a minute",
    (Platform.JETSON, Step.POWER_CYCLE): "shut the board down and take the power away for a minute",
    (Platform.WSL, Step.RESET): "run `wsl --shutdown` on Windows, then restart Windows",
    (Platform.JETSON, Step.RESET): "reboot the board",
}
# Which steps are done elsewhere, and by whom.
_ELSEWHERE = {
    Platform.GUEST: (
        "For the administrator of this virtual machine's host, or its provider: ",
        {Step.HARDWARE},
    ),
    Platform.CONTAINER: (
        "On the host, outside of this container: ",
        {Step.HARDWARE, Step.HOST, Step.DRIVER, Step.RESET},
    ),
    Platform.WSL: ("On Windows and its hardware: ", {Step.HARDWARE}),
}
_WINDOWS_DRIVER = (
    "On Windows: update the NVIDIA driver, then WSL (`wsl --update`), and run `wsl --shutdown`."
    " WSL has no kernel module and no service of NVIDIA's."
)


def platform_of(machine: Machine | Missing) -> Platform:
    """The platform of a machine; bare metal where nothing shows another one."""
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
    state = machine.state
    if isinstance(state, Missing) or isinstance(state.processor_layout, Missing):
        return Platform.BARE_METAL
    return Platform.GUEST if state.processor_layout.virtual_machine else Platform.BARE_METAL


def fit_remedy(written: str, platform: Platform = Platform.BARE_METAL) -> str:
    """The remedy as it can be done on a platform."""
    steps = {Step(mark[1]) for mark in _MARK.finditer(written)}
    if not steps:
        return written
    if platform is Platform.WSL and Step.DRIVER in steps:
        return _WINDOWS_DRIVER
    fitted = _MARK.sub(lambda mark: _words(mark, platform), written)
    place, there = _ELSEWHERE.get(platform, ("", set()))
    return f"{place}{_lowered(fitted)}" if steps & there else fitted


def _words(mark: re.Match[str], platform: Platform) -> str:
    """The words of a step, with a capital where those on bare metal have one."""
    original = mark[2] or ""
    words = _OWN_WORDS.get((platform, Step(mark[1])), original)
    return f"{words[0].upper()}{words[1:]}" if original[:1].isupper() else words


def _lowered(text: str) -> str:
    """The text as the second half of a sentence: `NVLink` and `Xid` keep their capital."""
    begins_a_sentence = text[:1].isupper() and text[1:2].islower() and text[:3] != "Xid"
    return f"{text[0].lower()}{text[1:]}" if begins_a_sentence else text


def name_gpu_in(remedy: str, *subjects: Subject) -> str:
    """The remedy with the GPUs' indices for INDEX, else their bus ids.

    For all GPUs where it is about none.
    """
    known = [gpu for one in subjects if (gpu := gpu_in_commands(one))]
    return remedy.replace("INDEX", ",".join(known)) if known else remedy.replace(" -i INDEX", "")


def gpu_in_commands(subject: Subject) -> str:
    """The GPU as `nvidia-smi -i` takes it; empty where the subject is none, or nothing of it is known."""
    names = (subject.nvml_index, subject.bus_id, subject.uuid) if isinstance(subject, DeviceSubject) else ()
    return next((str(one) for one in names if not isinstance(one, Missing)), "")
