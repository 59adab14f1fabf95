"""The series of present findings: their labels are identity and constant words."""

import re
from dataclasses import replace

from gpudiag.checks.catalogue import finding_kinds
from gpudiag.model.evidence import DeviceSubject, Evidence, FileSubject, HostSubject, LinkSubject
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.xid import sxids, xids
from gpudiag.render.finding_metrics import (
    MAX_WORDS,
    count_findings,
    describe_cause,
    describe_remedy,
    finding_labels,
)
from tests.unit.model.nouns import make_device, make_snapshot
from tests.walking import walk

GPU = make_device(5, serial="1650000000005")
MACHINE = make_snapshot(make_device(4), GPU)
KINDS = {kind.code: kind for kind in finding_kinds()}
ABSENT = Missing(MissingReason.SOURCE_ABSENT)
ON_GPU = DeviceSubject(GPU.id.uuid, GPU.id.bus_id, GPU.id.nvml_index, "a1")


def make_finding(code, subject=ON_GPU, *evidence, message="GPU 5: 91 C, limit 87"):
    return KINDS[code].finding(subject, message, *evidence)


TEXTS = (
    *((kind.code, None) for kind in finding_kinds()),
    *(("xid.hardware", xid) for xid in xids()),
    *(("sxid.fatal", sxid) for sxid in sxids()),
)


@walk(TEXTS)
def test_every_code_and_xid_has_words_that_fit_into_a_label(case):
    code, xid = case
    cause = describe_cause(code, xid)
    assert 10 < len(cause) <= MAX_WORDS
    assert not cause.endswith(".")
    labels = finding_labels(
        make_finding(code, ON_GPU, *([Evidence(code.split(".")[0], xid)] if xid else [])), MACHINE, {}
    )
    assert labels["title"] == cause
    assert labels["remedy"].startswith(describe_remedy(code, xid)[:10].replace("INDEX", "5"))
    assert labels["remedy"].endswith((".", ":", "`", ")", "?"))
    assert len(labels["remedy"]) <= MAX_WORDS
    assert "INDEX" not in labels["remedy"]


def test_a_finding_of_a_gpu_has_its_whole_identity_also_where_it_knows_less():
    by_place = DeviceSubject(ABSENT, GPU.id.bus_id, ABSENT, "a1")
    for subject in (ON_GPU, by_place):
        labels = finding_labels(make_finding("gpu.lost", subject), MACHINE, {})
        assert {name: labels.get(name) for name in ("gpu", "uuid", "bus_id", "serial", "host")} == {
            "gpu": "5",
            "uuid": GPU.id.uuid,
            "bus_id": GPU.id.bus_id,
            "serial": "1650000000005",
            "host": "a1",
        }
    gone = DeviceSubject("GPU-9", "00000000:9d:00.0", ABSENT, "a1")
    labels = finding_labels(make_finding("gpu.gone", gone), MACHINE, {})
    assert (labels["gpu"], labels["uuid"], labels["bus_id"]) == (
        "00000000:9d:00.0",
        "GPU-9",
        "00000000:9d:00.0",
    )
    assert "serial" not in labels


def test_what_is_no_gpu_has_no_label_of_one_and_names_the_part():
    said = {
        "infiniband.port_down": (LinkSubject(("mlx5_0:1", "switch"), "a1"), (), "mlx5_0:1 to switch"),
        "host.disk_full": (FileSubject("/scratch", 1), (), "/scratch"),
        "infiniband.port_gone": (HostSubject("a1"), (Evidence("port", "mlx5_1:1"),), "port mlx5_1:1"),
        "process.dead": (ON_GPU, (Evidence("state", "Z"), Evidence("pid", 4242)), "process 4242"),
        "environment.nccl_costly": (
            HostSubject("a1"),
            (Evidence("NCCL_DEBUG", "TRACE", source="environment"),),
            "NCCL_DEBUG",
        ),
        "host.governor": (HostSubject("a1"), (), None),
    }
    for code, (subject, evidence, part) in said.items():
        labels = finding_labels(make_finding(code, subject, *evidence), MACHINE, {})
        assert labels.get("subject") == part, code
        assert ("uuid" in labels) == (subject is ON_GPU)
        assert labels["host"] == "a1"
        assert all(labels.values())


def test_numbers_that_move_make_no_new_series():
    hot = [make_finding("temperature.gpu_too_hot", message=f"GPU 5: {degrees} C") for degrees in (90, 91)]
    assert len(count_findings(hot, MACHINE)) == 1
    assert count_findings(hot, MACHINE)[0][1] == 2
    assert not re.search(r"9[01] C", str(count_findings(hot, MACHINE)))


def test_a_finding_that_states_an_xid_stays_one_series_and_the_xid_itself_names_it():
    lost = make_finding("gpu.lost")
    told = replace(lost, evidence=(*lost.evidence, Evidence("xid", 79)))
    assert finding_labels(lost, MACHINE, {}) == finding_labels(told, MACHINE, {})
    xid = finding_labels(make_finding("xid.wear", ON_GPU, Evidence("xid", 94)), MACHINE, {})
    assert xid["xid"] == "94"
    assert xid["title"].startswith("Xid 94: ")


def test_an_observation_is_no_fault():
    note = make_finding("xid.note", ON_GPU, Evidence("xid", 43))
    assert note.outcome is Outcome.PASS
    assert count_findings([note], MACHINE) == []
    assert [labels["blocks_jobs"] for labels, _ in count_findings([make_finding("gpu.lost")], MACHINE)] == [
        "true"
    ]
