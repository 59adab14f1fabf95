"""Every remedy of every code, on a real subject: it names the GPU, has nothing to fill in, and its commands
are whole.
"""

import re
import shlex

from gpudiag.checks.catalogue import finding_kinds
from gpudiag.checks.runner import run_checks
from gpudiag.model.evidence import DeviceSubject, HostSubject
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.remedy import Step
from tests.scenarios.situations import Case, look_at_machine
from tests.scenarios.test_catalogue import CASES, CHECKS, name
from tests.walking import walk

ABSENT = Missing(MissingReason.SOURCE_ABSENT)
GPU = DeviceSubject("GPU-5", "00000000:5d:00.0", 5, "a1")
UNLISTED = DeviceSubject("GPU-5", "00000000:5d:00.0", ABSENT, "a1")
# Words in capitals that commands really take.
_REAL_WORDS = {"DEFAULT", "UP", "CONT", "DEBUG", "INFO", "NVRM", "KEY", "PERFORMANCE", "POWER"}
_PLACEHOLDER = re.compile(
    r"<[a-zA-Z_ ]+>|\{[a-zA-Z_.]*\}|\b(?:INDEX|PID|WATTS|PROFILE|ADDRESS|DEVICE)\b"
    rf"|\[(?:{'|'.join(Step)})\b"
)
_CAPITALS = re.compile(r"(?<![\w/.=-])[A-Z][A-Z_]*(?![\w=])")
_OF_A_GPU = re.compile(r"nvidia-smi (?:mig )?-i (\S+)")
# What nvidia-smi knows (nvidia-smi(1)).
_SMI_OPTIONS = {
    "--gpu-reset",
    "-i",
    "-q",
    "-d",
    "-r",
    "-e",
    "-c",
    "-pl",
    "-pm",
    "-rac",
    "-rgc",
    "-mig",
    "-lgip",
    "-L",
    "-p2p",
}


def commands(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def assert_whole(remedy: str) -> None:
    assert _PLACEHOLDER.search(remedy) is None, remedy
    for command in commands(remedy):
        words = shlex.split(command)
        assert words
        assert not set(_CAPITALS.findall(command)) - _REAL_WORDS, command
        if words[0] == "nvidia-smi":
            assert {word for word in words if word.startswith("-")} <= _SMI_OPTIONS, command


@walk(finding_kinds(), lambda kind: kind.code)
def test_the_remedy_of_a_code_names_the_gpu_that_it_is_about(kind):
    remedy = kind.finding(GPU, "it is so").remedy
    assert "INDEX" not in remedy
    assert set(_OF_A_GPU.findall(remedy)) <= {"5"}
    unlisted = kind.finding(UNLISTED, "it is so").remedy
    assert set(_OF_A_GPU.findall(unlisted)) <= {"00000000:5d:00.0"}
    assert (
        "-i"
        not in kind.finding(HostSubject("a1"), "it is so")
        .remedy.replace("lspci", "")
        .split("nvidia-smi")[-1][:4]
    )


@walk(CASES, name)
def test_a_remedy_on_a_real_subject_is_whole(case: Case):
    context = case.fires.context(look_at_machine(case.base))
    for finding in run_checks(context, (CHECKS[case.check],))[0].findings:
        assert_whole(finding.remedy)
        named = set(_OF_A_GPU.findall(finding.remedy))
        if isinstance(finding.subject, DeviceSubject):
            index, bus_id = finding.subject.nvml_index, finding.subject.bus_id
            assert named <= {str(bus_id if isinstance(index, Missing) else index)}, finding.remedy
        else:
            assert not named, finding.remedy
