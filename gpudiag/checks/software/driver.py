"""Checks of the driver and the GPUs' firmware: the right version, equal on all GPUs, intact, kept loaded."""

from collections.abc import Iterator
from functools import partial

from gpudiag.checks.gpu.products import is_data_center
from gpudiag.checks.majority import describe_split, split_group, usual_value
from gpudiag.checks.needs import NO_TRACE
from gpudiag.checks.per_device import answering, judge_devices
from gpudiag.checks.registry import (
    BOTH_GPUS,
    Basis,
    FindingKind,
    Judgement,
    check,
    does_not_apply,
    judged,
    not_readable,
)
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.checks.traces import pci_gpus, traces_for
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot, SourceState
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing

_SLOW_START_SECONDS = 1.0  # our choice: with the driver kept loaded nvmlInit and a reading take milliseconds
_kind = partial(FindingKind, severity=Severity.CONFIG, category=Category.SW_OTHER, owner=Owner.HOST)
_DRIVER_NOUVEAU_BASIS = Basis(
    reads="/proc/modules, and the kernel driver bound to each GPU in /sys/bus/pci/devices.",
    limit="nouveau neither bound to a GPU nor loaded beside NVIDIA's driver",
    look_also=("lspci -nnk -d 10de:", "cat /etc/modprobe.d/*", "driver.not_loaded"),
)
_DRIVER_FIRMWARE_BASIS = Basis(
    reads="VBIOS and InfoROM image version of each GPU, nvmlDeviceValidateInforom, the mode of the GSP"
    " firmware and its default.",
    limit=(
        "the version that most GPUs of the product and board have here, two at least; without a majority all"
        " of them are named, and none is blamed; the driver's own verdict and default"
    ),
    look_also=("nvidia-smi -q | grep -e VBIOS -e Image -e GSP", "xid 93", "xid 119"),
)
_firmware_kind = partial(_kind, outcome=Outcome.WARN, basis=_DRIVER_FIRMWARE_BASIS)
NOUVEAU_BOUND = _kind(
    code="driver.nouveau_bound",
    outcome=Outcome.FAIL,
    meaning="The kernel gave a GPU to the nouveau driver, which cannot run CUDA.",
    remedy=(
        "[driver] Blacklist nouveau (`blacklist nouveau`, `options nouveau modeset=0` in /etc/modprobe.d) and"
        " reboot."
    ),
    stated=True,
    basis=_DRIVER_NOUVEAU_BASIS,
)
NOUVEAU_LOADED = _kind(
    code="driver.nouveau_loaded",
    outcome=Outcome.WARN,
    meaning="The nouveau driver is loaded beside NVIDIA's; it may take a GPU at the next start.",
    remedy=(
        "[driver] Blacklist nouveau (`blacklist nouveau`, `options nouveau modeset=0` in /etc/modprobe.d) and"
        " reboot."
    ),
    basis=_DRIVER_NOUVEAU_BASIS,
)
DRIVER_UNEXPECTED = _kind(
    code="driver.unexpected_version",
    outcome=Outcome.FAIL,
    meaning="The driver is not the version that the user expects (`--expect-driver`).",
    remedy="Install the expected driver, or correct `--expect-driver`.",
    basis=Basis(
        reads="nvmlSystemGetDriverVersion, against `--expect-driver`.",
        limit="--expect-driver",
        look_also=("cat /proc/driver/nvidia/version", "driver.version_mismatch"),
    ),
)
VBIOS_DIFFERS = _firmware_kind(
    code="driver.vbios_differs",
    severity=Severity.MONITOR,
    meaning="Identical GPUs of this machine have different firmware (VBIOS).",
    remedy="Ask the vendor for one VBIOS for all; mixed ones are a common cause of uneven speed.",
)
INFOROM_DIFFERS = _firmware_kind(
    code="driver.inforom_differs",
    severity=Severity.MONITOR,
    meaning="Identical GPUs of this machine have different InfoROM images.",
    remedy="Ask the vendor for one image for all.",
)
INFOROM_CORRUPTED = _firmware_kind(
    code="driver.inforom_corrupted",
    severity=Severity.TRIAGE,
    category=Category.HW_OTHER,
    owner=Owner.HARDWARE,
    meaning=(
        "The driver reports that the GPU's InfoROM, which holds its settings and error history, is corrupted."
    ),
    remedy=(
        "[hardware] [reset: Reset the GPU (`nvidia-smi -i INDEX -r`)] and look again;"
        " if it stays (Xid 93), have the"
        " InfoROM restored or the GPU replaced."
    ),
    stated=True,
)
GSP_OFF = _firmware_kind(
    code="driver.gsp_off",
    meaning="The GPU's system processor (GSP) is off, though it is on by default on this product.",
    remedy=(
        "[driver] Look for `NVreg_EnableGpuFirmware=0` in /etc/modprobe.d;"
        " on drivers of 2024 and later leave it on."
    ),
)
PERSISTENCE_OFF = _kind(
    code="driver.persistence_off",
    outcome=Outcome.WARN,
    meaning=(
        "The driver lets go of idle GPUs: each first use waits for them to start, and error counts are lost."
    ),
    remedy=(
        "[driver] Run nvidia-persistenced (`systemctl enable --now"
        " nvidia-persistenced`), or `nvidia-smi -pm 1` as root."
    ),
    basis=Basis(
        reads="Persistence mode of each GPU, and how long NVML took to answer.",
        limit=(
            f"on for data-center GPUs, or NVML in less than {_SLOW_START_SECONDS:.0f} s (a B200 machine in"
            " the captures is healthy with it off)"
        ),
        look_also=("systemctl status nvidia-persistenced", "nvml.timed_out"),
    ),
)


@check(
    "driver.nouveau",
    title="no GPU is held by nouveau",
    reports=(NOUVEAU_BOUND, NOUVEAU_LOADED),
    readings=("kernel_modules", "pci_devices"),
    confirmed="the Linux kernel's /proc/modules and sysfs",
)
def driver_nouveau(context: Context) -> Judgement:
    """FAIL where nouveau holds a GPU; WARN where it is loaded beside NVIDIA's driver."""
    snapshot, modules = context.snapshot, context.snapshot.machine.kernel_modules
    if not traces_for(context):
        return does_not_apply(NO_TRACE)
    if snapshot.source("nvml").state not in (SourceState.OK, SourceState.NOT_ASKED):
        return does_not_apply("NVML does not work: source.nvml names nouveau where it is the reason")
    bound = [gpu for gpu in pci_gpus(snapshot) if gpu.driver == "nouveau"]
    subject = HostSubject(snapshot.host)
    if bound:
        message = f"nouveau holds {len(bound)} of the GPUs on the bus"
        return judged(
            NOUVEAU_BOUND.finding(
                subject, message, Evidence("driver", "nouveau", limit="nvidia", source="sysfs")
            )
        )
    if isinstance(modules, Missing):
        return not_readable("the kernel's modules", modules)
    if "nouveau" in modules and "nvidia" in modules:
        evidence = Evidence("kernel_modules", "nouveau", source="/proc/modules")
        return judged(NOUVEAU_LOADED.finding(subject, "nouveau is loaded beside NVIDIA's driver", evidence))
    return judged()


@check(
    "driver.version",
    title="the driver is the expected version",
    needs=("nvml",),
    reports=(DRIVER_UNEXPECTED,),
    readings=("driver_version",),
    confirmed="nvidia-smi -q of A100, H100, B200 and T4",
)
def driver_version(context: Context) -> Judgement:
    """FAIL for a driver other than `--expect-driver`; `580` expects any version of that branch."""
    expected, version = context.expected_driver, context.snapshot.driver_version
    if isinstance(expected, Missing):
        return does_not_apply("no driver version is expected (--expect-driver)")
    if isinstance(version, Missing):
        return not_readable("the driver's version", version)
    if version == expected or version.startswith(f"{expected}."):
        return judged()
    evidence = Evidence("driver_version", version, limit=expected, source="NVML; limit: --expect-driver")
    message = f"driver {version} is loaded, {expected} is expected"
    return judged(DRIVER_UNEXPECTED.finding(HostSubject(context.snapshot.host), message, evidence))


@check(
    "driver.firmware",
    title="identical GPUs have identical, intact firmware",
    needs=("gpus",),
    reports=(INFOROM_CORRUPTED, VBIOS_DIFFERS, INFOROM_DIFFERS, GSP_OFF),
    readings=(
        "vbios_version",
        "inforom_version",
        "inforom_valid",
        "gsp_firmware_mode",
        "gsp_firmware_mode_default",
    ),
    confirmed=f"nvidia-smi -q of A100, H100, B200 and T4; {BOTH_GPUS}",
)
def driver_firmware(context: Context) -> Judgement:
    """WARN for firmware that differs from most peers', for a corrupted InfoROM, and for a GSP that is off."""
    others = (("inforom_version",), ("inforom_valid",), ("gsp_firmware_mode", "gsp_firmware_mode_default"))
    return judge_devices(context.snapshot, ("vbios_version",), _judge_firmware, either=others)


@check(
    "driver.persistence",
    title="the driver stays loaded",
    needs=("gpus",),
    reports=(PERSISTENCE_OFF,),
    readings=("persistence_mode", "seconds that NVML took"),
    confirmed=f"nvidia-smi -q of A100, H100, B200 (off) and T4; {BOTH_GPUS}",
)
def driver_persistence(context: Context) -> Judgement:
    """WARN where persistence is off on a data-center GPU and the driver was slow to start for it."""
    snapshot = context.snapshot
    if not any(is_data_center(device) for device in answering(snapshot)):
        return does_not_apply("there is no data-center GPU")
    judgement = judge_devices(snapshot, ("persistence_mode",), lambda snapshot, device: ())
    off = [device for device in answering(snapshot) if device.persistence_mode == "disabled"]
    seconds = snapshot.source("nvml").seconds
    if judgement.outcome is not Outcome.PASS or not off or isinstance(seconds, Missing):
        return judgement
    if seconds < _SLOW_START_SECONDS:
        return judgement
    message = f"persistence is off on {len(off)} GPUs, and the driver took {seconds:.1f} s to answer"
    evidence = (
        Evidence("persistence_mode", "disabled", limit="enabled", source="nvmlDeviceGetPersistenceMode"),
        Evidence("nvml_seconds", seconds, "s", _SLOW_START_SECONDS, "our choice"),
    )
    return judged(PERSISTENCE_OFF.finding(HostSubject(snapshot.host), message, *evidence))


def _judge_firmware(snapshot: Snapshot, device: Device) -> Iterator[Finding]:
    subject, name = device_subject(snapshot, device), name_device(device)
    if device.inforom_valid is False:
        evidence = Evidence("inforom_valid", False, source="NVML return code 14, of any call")
        yield INFOROM_CORRUPTED.finding(subject, f"{name}: its InfoROM is corrupted", evidence)
    for field, kind, words in (
        ("vbios_version", VBIOS_DIFFERS, "VBIOS"),
        ("inforom_version", INFOROM_DIFFERS, "InfoROM"),
    ):
        own, usual = getattr(device, field), usual_value(snapshot, device, field)
        if not isinstance(own, Missing) and usual is not None and own != usual:
            evidence = Evidence(field, own, limit=str(usual), source="NVML; limit: peers")
            yield kind.finding(subject, f"{name}: {words} {own}, most others have {usual}", evidence)
        group = split_group(snapshot, device, field)
        if group:
            split = describe_split(group, field)
            evidence = Evidence(field, split, limit="the same on all", source="NVML")
            message = f"GPUs of one kind differ in their {words}: {split}"
            yield kind.finding(HostSubject(snapshot.host), message, evidence)
    if device.gsp_firmware_mode == "disabled" and device.gsp_firmware_mode_default == "enabled":
        evidence = Evidence(
            "gsp_firmware_mode", "disabled", limit="enabled", source="nvmlDeviceGetGspFirmwareMode"
        )
        yield GSP_OFF.finding(subject, f"{name}: GSP firmware is off", evidence)
