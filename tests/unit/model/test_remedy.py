"""Remedies fit the platform: nobody is sent to a slot, a supply or a device file that is not there."""

import re
from dataclasses import replace

import pytest

from gpudiag.checks.catalogue import finding_kinds
from gpudiag.checks.registry import check, judged
from gpudiag.checks.runner import run_checks
from gpudiag.model.codec import decode, encode
from gpudiag.model.context import Context
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import Finding
from gpudiag.model.remedy import Platform, Step, fit_remedy, platform_of
from gpudiag.reference.failures import failures
from gpudiag.reference.kernel_words import kernel_words
from gpudiag.reference.xid import action_text, sxids, written_action, xids
from tests.scenarios.situations import look_at_machine
from tests.walking import walk

GPU = DeviceSubject("GPU-5", "00000000:5d:00.0", 5, "a1")
REMEDIES = [(kind.code, kind.written_remedy) for kind in finding_kinds()]
REMEDIES += [(f"xid {code}", written_action(xid.immediate)) for code, xid in xids().items()]
REMEDIES += [(f"sxid {code}", sxid.written_remedy) for code, sxid in sxids().items()]
MARK = re.compile(rf"\[(?:{'|'.join(Step)})\b")
WRITTEN = dict(REMEDIES)
ELSEWHERE = [platform for platform in Platform if platform is not Platform.BARE_METAL]
OF_A_RESET = re.compile(r"`nvidia-smi [^`]*(?:-r|--gpu-reset)\b|or reboot\b", re.IGNORECASE)
OF_THE_KERNEL = re.compile(r"\b(?:modprobe|rmmod|systemctl [^`]*nvidia|/etc/modprobe)\b")
OF_THE_HOST = re.compile(
    r"\b(?:modprobe|rmmod|systemctl|smartctl)\b|nvidia-smi [^`]*-(?:pm|pl|mig|rac|r|-gpu-reset)\b"
)
OF_HARDWARE = re.compile(r"\b(?:reseat|riser|replaced?|fans|BMC)\b", re.IGNORECASE)


@walk(REMEDIES, lambda remedy: remedy[0])
def test_every_remedy_can_be_done_where_it_is_read(remedy):
    code, written = remedy
    words = fit_remedy(written)
    assert not MARK.search(words), (code, words)
    for platform in ELSEWHERE:
        fitted = fit_remedy(written, platform)
        assert not MARK.search(fitted), (code, fitted)
        assert fitted[0].isupper() or fitted[0] == "`" or not words[0].isupper(), (code, fitted)
        assert "power-cycle the machine" not in fitted.lower(), (code, platform, fitted)
        assert not re.search(r"\bpower-cycle it\b", fitted), (code, platform, fitted)
        assert "  " not in fitted
        if platform is not Platform.JETSON and OF_HARDWARE.search(fitted):
            assert re.match(r"For the administrator|On the host|On Windows", fitted), (code, platform, fitted)
        if platform in (Platform.WSL, Platform.JETSON):
            assert not OF_A_RESET.search(fitted), (code, platform, fitted)
        if platform is Platform.WSL:
            assert not OF_THE_KERNEL.search(fitted), (code, fitted)
        if platform is Platform.CONTAINER and OF_THE_HOST.search(fitted):
            assert fitted.startswith("On the host"), (code, fitted)


@pytest.mark.parametrize(
    ("machine", "platform"),
    [
        ("h100x8", Platform.BARE_METAL),
        ("h100-vm", Platform.GUEST),
        ("h100x8-container2", Platform.CONTAINER),
        ("wsl2-rtx", Platform.WSL),
    ],
)
def test_the_platform_of_a_machine(machine, platform):
    assert platform_of(look_at_machine(machine).machine) is platform


@pytest.mark.parametrize(
    ("nodes", "kernel", "platform"),
    [
        (("/dev/dxg",), "5.15.90.1-microsoft-standard-WSL2", Platform.WSL),  # microsoft/WSL#9938
        ((), "6.6.87.2-microsoft-standard-WSL2", Platform.WSL),
        ((), "6.1.38-microsoft-standard", Platform.WSL),  # a kernel of one's own: microsoft/WSL#10289
        ((), "5.15.153.1-microsoft-standard-WSL2+", Platform.WSL),  # with Docker inside: microsoft/WSL#9962
        (("/dev/nvidia0",), "5.15.148-tegra", Platform.JETSON),  # Jetson Linux 36.4
        (("/dev/nvidia0",), "6.8.0-1013-oracle-64k", Platform.BARE_METAL),
    ],
)
def test_the_platform_by_kernel_and_device_files(nodes, kernel, platform):
    snapshot = look_at_machine("h100x8")
    machine = replace(snapshot.machine, kernel_release=kernel, device_nodes=nodes)
    assert platform_of(machine) is platform


def test_only_the_remedy_of_a_finding_is_fitted():
    kind = next(kind for kind in finding_kinds() if kind.code == "gpu.lost")
    finding = kind.finding(GPU, "it is lost")

    @check("gpu.lost", title="it is there", reports=(kind,), readings=("it",), confirmed="a test")
    def lost(context):
        return judged(finding)

    for machine, words in (("h100-vm", "start it from its host"), ("h100x8", "power-cycle it")):
        ((fitted,),) = (one.findings for one in run_checks(Context(look_at_machine(machine)), (lost,)))
        assert replace(fitted, remedy=finding.remedy) == finding
        assert words in fitted.remedy


def test_what_is_read_of_the_catalogues_has_no_marks():
    read = [kind.remedy for kind in finding_kinds()] + [one.remedy for one in failures().values()]
    read += [action_text(xid.immediate) for xid in xids().values()]
    assert [words for words in read if MARK.search(words)] == []
    assert any(MARK.search(words.written_remedy) for words in kernel_words())


def test_a_finding_from_a_document_keeps_its_remedy():
    (kind,) = (kind for kind in finding_kinds() if kind.code == "gpu.lost")
    there = kind.finding(GPU, "it is lost").on(Platform.GUEST)
    back = decode(Finding, encode(there))
    assert back.on(Platform.CONTAINER).remedy == there.remedy


@pytest.mark.parametrize(("platform", "remedy", "words"), [
    # A reset needs the persistence daemon gone: github.com/NVIDIA/NVSentinel/issues/1690; in WSL there is
    # none.
    (Platform.WSL, written_action("reset_gpu"), "Drain the GPU and run `wsl --shutdown`"),
    (Platform.JETSON, written_action("reset_when_free"), "when the GPU is next free, reboot the board."),
    # microsoft/WSL#11865 and #14339: nothing inside of WSL loads a driver.
    (Platform.WSL, WRITTEN["nvml.driver_not_loaded"], "On Windows: update the NVIDIA driver"),
    # github.com/NVIDIA/nvidia-docker/issues/723: persistence is the host's to set.
    (Platform.CONTAINER, WRITTEN["driver.persistence_off"], "On the host, outside of this container: run nvidia-persistenced"),
    # github.com/NVIDIA/k8s-device-plugin/issues/201: MIG is refused inside of a container.
    (Platform.CONTAINER, WRITTEN["mode.mig_without_instances"], "On the host, outside of this container: create instances"),
])  # fmt: skip
def test_remedies_of_public_reports(platform, remedy, words):
    assert words in fit_remedy(remedy, platform)
