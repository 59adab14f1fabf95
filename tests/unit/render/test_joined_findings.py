from dataclasses import replace

from gpudiag.model.codec import decode, encode
from gpudiag.model.evidence import DeviceSubject, Evidence
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.render.ci import render_markdown
from gpudiag.render.joined_findings import join_findings
from gpudiag.render.report_text import render_report_text
from tests.unit.render.reports import make_finding, make_report, make_result


def on(index, words="power limit 400 W, its default is 700 W", **values):
    subject = DeviceSubject(f"GPU-{index}", f"00000000:{index:02x}:00.0", index, "a1")
    given = {
        "code": "power.limit_lowered",
        "outcome": Outcome.WARN,
        "subject": subject,
        "message": f"GPU {index} ({index:02x}:00.0): {words}",
        "remedy": "Set it back as root with `nvidia-smi -i INDEX -pl 700`.",
        "evidence": (Evidence("power_limit_enforced_watts", 400.0, "W", 700.0),),
    }
    finding = make_finding(**{**given, **values})
    return finding.with_remedy(finding.remedy)


def test_what_fifteen_gpus_share_is_told_once_with_one_command():
    (told,) = join_findings([on(index) for index in range(16) if index != 4])
    assert told.subject == "GPUs 0-3 and 5-15"
    assert told.message == "each: power limit 400 W, its default is 700 W"
    assert told.remedy.count("nvidia-smi -i 0,1,2,3,5,6,7,8,9,10,11,12,13,14,15 -pl 700") == 1
    assert len(told.facts) == 1
    assert told.count == 15


def test_different_words_and_facts_of_many_gpus_are_told_with_the_gpu():
    findings = [
        on(index, f"is at {80 + index} C", evidence=(Evidence("heat", 80 + index, "C"),))
        for index in range(5)
    ]
    (told,) = join_findings(findings)
    assert told.message.startswith("GPU 0: is at 80 C; GPU 1: is at 81 C")
    assert told.message.endswith("and 2 more of the same kind")
    assert told.facts[0].startswith("GPU 0: heat 80")
    assert told.facts[-1] == "2 more of the kind"


def test_a_command_names_all_gpus_wherever_it_names_one():
    for remedy, expected in (
        ("Run `nvidia-smi -q -i INDEX` as root.", "Run `nvidia-smi -q -i 0,1,2` as root."),
        ("Look at `nvidia-smi -q -i INDEX | grep Max`.", "Look at `nvidia-smi -q -i 0,1,2 | grep Max`."),
        ("Reset it (`nvidia-smi -i INDEX -r`), wait 1 s.", "Reset it (`nvidia-smi -i 0,1,2 -r`), wait 1 s."),
        ("Wait 10 s, take `-i INDEX` and `-i 10`.", "Wait 10 s, take `-i 0,1,2` and `-i 10`."),
    ):
        findings = [on(index, remedy=remedy) for index in range(3)]
        assert findings[1].remedy == remedy.replace("INDEX", "1")
        assert join_findings(findings)[0].remedy == expected


def test_a_number_in_a_remedy_is_no_gpu():
    findings = [on(index, remedy=f"Link {index} of `-i INDEX`: reseat -i {index}.") for index in range(3)]
    assert join_findings(findings)[0].remedy == findings[0].remedy


def test_findings_of_a_document_are_told_once_too():
    findings = [decode(Finding, encode(on(index))) for index in range(3)]
    assert findings == [on(index) for index in range(3)]
    assert join_findings(findings)[0].remedy.count("-i 0,1,2 -pl 700") == 1


def test_two_gpus_share_only_what_they_say_alike():
    assert len(join_findings([on(0), on(1)])) == 1
    assert len(join_findings([on(0, "link 3 is down"), on(1, "link 5 is down")])) == 2


def test_other_subjects_stand_for_themselves():
    unknown = DeviceSubject("GPU-9", "00000000:09:00.0", Missing(MissingReason.SOURCE_ABSENT), "a1")
    findings = [on(0), on(1), on(2), on(3, subject=unknown), on(4, outcome=Outcome.FAIL)]
    other_host = [replace(one, subject=replace(one.subject, host="a2")) for one in (on(0), on(1), on(2))]
    assert [told.count for told in join_findings([*findings, *other_host])] == [3, 1, 1, 3]


def test_text_and_markdown_tell_it_once_and_the_document_has_each():
    report = make_report(make_result("power.limit", Outcome.WARN, *(on(index) for index in range(15))))
    for render in (render_report_text, render_markdown):
        assert render(report).replace("\\", "").count("its default is 700 W") == 1
        assert "GPUs 0-14" in render(report)
    assert len(report.findings()) == 15
