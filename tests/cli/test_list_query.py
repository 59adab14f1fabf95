"""`gpudiag list --query`: readings as CSV, by nvidia-smi's names and in its words."""

import re
import subprocess

from gpudiag.reference.query_fields import FIELDS
from gpudiag.reference.vocabulary import QUERY_ALIASES
from gpudiag.simulate.nvidia_smi.fields import find_field
from tests.cli.simulated import TIME_LIMIT_SECONDS, run_gpudiag, run_on, simulated_machine


def test_a_query_answers_as_nvidia_smi_does():
    """Field by field, on machines that have different ones.

    The simulated nvidia-smi asks the library by itself.
    """
    names = [name for name in (*FIELDS, *QUERY_ALIASES) if find_field(name) is not None]
    assert len(names) > 40
    for spec in ("h100x8+lost:3", "rtx4090x2", "h100-mig"):
        with simulated_machine(spec) as session:
            for form in ("csv", "csv,noheader,nounits"):
                ours = run_on(session, "list", "--query", ",".join(names), "--format", form)
                theirs = subprocess.run(
                    ["nvidia-smi", f"--query-gpu={','.join(names)}", f"--format={form}"],
                    env=dict(session.environment),
                    capture_output=True,
                    text=True,
                    timeout=TIME_LIMIT_SECONDS,
                )
                assert ours.status == 0, ours.err
                rows = [line.split(", ") for line in ours.out.splitlines()]
                # Application clocks are gone in drivers from 590 on: to gpudiag a reading that is not
                # supported.
                stdout = theirs.stdout.replace("[Requested functionality has been deprecated]", "[N/A]")
                wanted = [line.split(", ") for line in stdout.splitlines()]
                assert len(rows) == len(wanted), spec
                for row, other in zip(rows, wanted, strict=True):
                    differ = [
                        (n, one, two) for n, one, two in zip(names, row, other, strict=True) if one != two
                    ]
                    assert differ == [], spec


def test_a_query_knows_gpudiags_own_names_and_the_machines():
    done = run_gpudiag(
        "h100x8",
        "list",
        "--query",
        "timestamp,count,driver_version,sm_clock_mhz,mig_mode",
        "--format",
        "csv,noheader",
    )
    row = done.out.splitlines()[0].split(", ")
    assert row[1:] == ["8", "580.105.08", "345", "disabled"]
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}", row[0])


def test_a_query_that_cannot_be_answered_is_one_sentence():
    for argv, words in {
        ("--query", "memory.usd"): "there is no field 'memory.usd'; did you mean memory.used?",
        ("--query", ","): "--query names no field",
        ("--query", "name", "--json"): "--query prints CSV",
        ("--query", "name", "--wide"): "--query and --wide do not go together",
        ("--format", "csv"): "--format csv prints the fields of --query",
        ("--query", "name", "--format", "csv,nohead"): "did you mean noheader?",
    }.items():
        done = run_gpudiag("h100x8", "list", *argv)
        assert (done.status, done.out) == (2, ""), argv
        assert words in done.err, argv
    nothing = run_gpudiag("none", "list", "--query", "name")
    assert (nothing.status, nothing.out) == (3, "")
    assert "NVML gives no readings" in nothing.err


def test_the_fields_of_a_query_are_listed():
    done = run_gpudiag("none", "list", "--help-query")
    assert done.status == 0
    assert "memory.used [MiB]" in done.out
    assert "tensor_activity_percent" in done.out
