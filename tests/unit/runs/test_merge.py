import json
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudiag.checks.catalogue import finding_kinds
from gpudiag.checks.ranks.between_hosts import NETWORK_HOST_CUT_OFF, NETWORK_HOSTS_PARTED
from gpudiag.model.codec import dumps
from gpudiag.model.documents import loads
from gpudiag.model.evidence import DeviceSubject, HostSubject, LinkSubject
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.report import CollectiveReport
from gpudiag.render.merged_text import render_merged
from gpudiag.render.report_formats import render_json
from gpudiag.render.style import columns
from gpudiag.runs.merge import merge_reports
from tests.unit.collectives.measurements import make_measurement
from tests.unit.model.nouns import TAKEN_AT, make_device, make_snapshot
from tests.unit.render.reports import hostile_reports, make_finding, make_report, make_result

LOST = make_result("gpu.lost", Outcome.FAIL, make_finding())
FINE = make_result("gpu.lost")


@pytest.fixture
def write(tmp_path):
    """A function that writes a machine's report and gives back its path."""

    def write_report(host, *results, verdict=None, name=None, **values):
        snapshot = make_snapshot(make_device(0), host=host, **values)
        path = tmp_path / f"{name or host}.json"
        path.write_text(dumps(make_report(*results, verdict=verdict, snapshot=snapshot)))
        return str(path)

    return write_report


def verdicts(merged):
    return {machine.name: machine.verdict for machine in merged.machines}


def test_identical_findings_are_one_group_with_its_machines(write):
    paths = [write(host, LOST) for host in ("a7", "b2", "c9")] + [write(f"n{n}", FINE) for n in range(7)]
    merged = merge_reports(paths)
    assert merged.verdict is Outcome.FAIL
    (group,) = merged.groups
    assert (group.code, group.machines, group.count) == ("gpu.lost", ("a7", "b2", "c9"), 3)
    text = render_merged(merged).splitlines()
    assert text[0] == "FAIL 10 machines: 7 pass; 3 fail"
    assert "FAIL 3: gpu.lost (hardware): a7 b2 c9" in text


def test_a_report_that_is_given_twice_counts_once(write, tmp_path):
    (tmp_path / "copy.json").write_bytes(Path(write("a1", LOST)).read_bytes())
    copy, twin = str(tmp_path / "copy.json"), write("a1", FINE, name="twin")
    merged = merge_reports([write("a1", LOST), copy, write("a1", LOST), twin])
    assert (len(merged.machines), merged.groups[0].count) == (2, 1)  # of one name, and not alike
    assert merged.repeated == (copy, str(tmp_path / "a1.json"))
    assert "Given twice, counted once" in render_merged(merged)


def test_groups_come_worst_first_then_the_widest(write):
    warning = make_result("x", Outcome.WARN, make_finding("host.shm", Outcome.WARN))
    hot = make_result("y", Outcome.FAIL, make_finding("gpu.hot"))
    merged = merge_reports(
        [write("a", warning), write("b", warning), write("c", hot), write("d", LOST), write("e", LOST)]
    )
    assert [group.code for group in merged.groups] == ["gpu.lost", "gpu.hot", "host.shm"]


def test_several_findings_of_one_machine_count_it_once(write):
    two = make_result("gpu.lost", Outcome.FAIL, make_finding(), make_finding())
    (group,) = merge_reports([write("a", two)]).groups
    assert (group.machines, group.count) == (("a",), 2)


def on(host, index, kind):
    """A finding of that kind about that GPU of the host, as a check's result."""
    subject = DeviceSubject(f"GPU-{host}-{index}", f"00000000:{index:02x}:00.0", index, host)
    return make_result(kind.code, kind.outcome, kind.finding(subject, f"GPU {index} is at fault"))


@pytest.mark.parametrize("same", [True, False], ids=["the same GPUs", "other GPUs"])
def test_a_merged_remedy_names_no_gpu_that_is_only_the_first_machines(write, same):
    """Walks every kind of finding: no index is named for all machines that is not at fault on all of them."""
    kinds = [one for one in finding_kinds() if one.outcome in (Outcome.FAIL, Outcome.WARN)]
    assert sum("INDEX" in kind.remedy for kind in kinds) > 20
    places = {"a7": (9,), "b2": (9,)} if same else {"a7": (9,), "b2": (4, 6), "c9": (5,)}
    paths = [
        write(host, *(on(host, index, kind) for kind in kinds for index in gpus))
        for host, gpus in places.items()
    ]
    groups = {(group.code, group.outcome): group for group in merge_reports(paths).groups}
    for kind in kinds:
        remedy = groups[kind.code, kind.outcome].remedy
        if "INDEX" not in kind.remedy:
            assert remedy == kind.remedy
        elif same:
            assert remedy == kind.remedy.replace("INDEX", "9")
        else:
            assert remedy == f"{kind.remedy} INDEX is 9 on a7; 4,6 on b2; 5 on c9."
        assert "INDEX" not in kind.remedy.replace("-i INDEX", "")  # so that a document's index can be found


def test_where_remedies_differ_each_has_its_machines(write):
    reset, replaced = (make_finding(remedy=words) for words in ("Reset it.", "Have it replaced."))
    results = {"a7": reset, "b2": replaced, "c9": reset}
    paths = [write(host, make_result("gpu.lost", Outcome.FAIL, one)) for host, one in results.items()]
    (group,) = merge_reports(paths).groups
    assert group.remedy == "On a7, c9: Reset it. On b2: Have it replaced."


def test_what_could_not_look_is_grouped_too(write):
    stuck = make_result("torch.build", Outcome.ERROR, reason="torch hangs")
    merged = merge_reports([write("a", stuck, FINE), write("b", stuck, FINE)])
    assert merged.verdict is Outcome.ERROR
    assert [(group.code, group.machines) for group in merged.groups] == [("torch.build", ("a", "b"))]


BROKEN = {
    "missing": None,
    "empty": b"",
    "blank": b"\n\n",
    "cut": b'{"schema": "gpudiag.report/1", "verdict": "pa',
    "binary": bytes(range(256)),
    "other": b'{"schema": "gpudiag.snapshot/1", "host": "a1"}',
    "newer": b'{"schema": "gpudiag.report/2", "verdict": "pass"}',
    "array": b"[]",
    "number": b"1",
    "null": b"null",
    "no_results": b'{"schema": "gpudiag.report/1", "verdict": "pass", "snapshot": {}}',
    "wrong_type": b'{"schema": "gpudiag.report/1", "verdict": "fine", "results": [], "snapshot": {}}',
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_an_unreadable_report_is_never_a_pass(write, tmp_path, data):
    path = tmp_path / "broken.json"
    if data is not None:
        path.write_bytes(data)
    merged = merge_reports([write("a1", FINE), str(path)])
    assert merged.verdict is Outcome.ERROR
    (broken,) = [machine for machine in merged.machines if machine.reason is not None]
    assert (broken.verdict, broken.path) == (Outcome.ERROR, str(path))
    assert path.name in render_merged(merged)
    assert merge_reports([write("b1", LOST), str(path)]).verdict is Outcome.FAIL


def test_a_folder_is_an_unreadable_report(write, tmp_path):
    assert merge_reports([write("a", FINE), str(tmp_path)]).verdict is Outcome.ERROR


@pytest.mark.parametrize(
    ("results", "stated", "expected"),
    [
        ((LOST,), Outcome.PASS, Outcome.FAIL),
        ((make_result("gpu.lost", Outcome.PASS, make_finding()),), Outcome.PASS, Outcome.FAIL),
        ((FINE,), Outcome.FAIL, Outcome.FAIL),
        ((), Outcome.PASS, Outcome.ERROR),
        ((make_result("x", Outcome.SKIP),), Outcome.PASS, Outcome.ERROR),
        ((FINE,), Outcome.SKIP, Outcome.ERROR),
    ],
)
def test_a_report_that_contradicts_itself_counts_as_the_worse(write, results, stated, expected):
    merged = merge_reports([write("a1", *results, verdict=stated)])
    assert merged.verdict is expected
    assert merged.machines[0].reason is not None or expected is stated


def test_a_host_with_two_reports_is_two_machines(write):
    paths = [write("a1", FINE, name="first"), write("a1", LOST, name="second")]
    merged = merge_reports(paths)
    assert verdicts(merged) == {f"a1 ({paths[0]})": Outcome.PASS, f"a1 ({paths[1]})": Outcome.FAIL}


def test_a_file_may_hold_a_report_per_line(tmp_path, write):
    lines = [Path(write(host, result)).read_text() for host, result in (("a", FINE), ("b", LOST))]
    path = tmp_path / "all.jsonl"
    path.write_text("\n".join([*lines, "{cut"]) + "\n")
    assert verdicts(merge_reports([str(path)])) == {
        "a": Outcome.PASS,
        "b": Outcome.FAIL,
        f"{path}:3": Outcome.ERROR,
    }


def test_the_document_reads_back(write, tmp_path):
    merged = merge_reports([write("a", LOST), write("b", FINE), str(tmp_path / "none.json")])
    assert loads(dumps(merged)) == merged
    assert json.loads(dumps(merged))["schema"] == "gpudiag.merged/1"


def test_simulated_machines_are_counted(write):
    merged = merge_reports([write("a", FINE, simulated="h100x8"), write("b", FINE)])
    assert "1 of them SIMULATED" in render_merged(merged)


def test_the_same_fault_on_most_machines_asks_for_one_cause(write):
    warned = "a common cause"
    many = [write(f"n{n}", LOST if n < 3 else FINE) for n in range(5)]
    assert warned in render_merged(merge_reports(many)).replace("\n  ", " ")
    few = [write(f"m{n}", LOST if n < 2 else FINE) for n in range(5)]
    assert warned not in render_merged(merge_reports(few)).replace("\n  ", " ")


def test_when_a_report_was_made_is_kept(write):
    earlier = TAKEN_AT - timedelta(days=3)
    assert merge_reports([write("a", FINE, taken_at=earlier)]).machines[0].taken_at == earlier


@settings(max_examples=50, deadline=None)
@given(reports=st.lists(hostile_reports, min_size=1, max_size=4))
def test_a_verdict_is_never_better_than_a_report(tmp_path_factory, reports):
    folder = tmp_path_factory.mktemp("reports")
    paths = []
    for number, report in enumerate(reports):
        paths.append(str(folder / f"{number}.json"))
        (folder / f"{number}.json").write_bytes(render_json(report).encode(errors="surrogatepass"))
    merged = merge_reports(paths)
    text = render_merged(merged)
    assert all(character.isprintable() or character == "\n" for character in text)
    bad = {Outcome.FAIL, Outcome.ERROR}
    if any(report.verdict in bad or not report.results for report in reports):
        assert merged.verdict in bad
    assert len(merged.machines) + len(merged.repeated) == len(reports)


def test_lines_fit_a_terminal(write):
    merged = merge_reports([write(f"node-{n:04}", LOST) for n in range(40)])
    text = render_merged(merged)
    assert max(map(len, text.splitlines())) <= columns()
    assert "and 16 more" in text


def test_a_report_is_read_without_decoding_every_reading(write):
    # A field of a device that this version does not know, or that went wrong, costs the merge nothing.
    path = write("a", FINE)
    document = json.loads(Path(path).read_text())
    document["snapshot"]["devices"][0]["temperature_celsius"] = {"from": "the future"}
    Path(path).write_text(json.dumps(document))
    assert merge_reports([path]).verdict is Outcome.PASS


def test_machines_with_another_driver_are_named(write):
    paths = [write(host, FINE, driver_version="580.105.08") for host in ("a", "b", "c")]
    merged = merge_reports([*paths, write("d", FINE, driver_version="575.57.08")])
    (group,) = merged.groups
    assert (merged.verdict, group.code, group.machines) == (Outcome.WARN, "machines.versions_differ", ("d",))
    assert "driver differs: 580.105.08 on 3, 575.57.08 on 1" in render_merged(merged)


@pytest.mark.parametrize(("versions", "named"), [
    ("ab", "m0 m1"), ("aabb", "m0 m1 m2 m3"), ("abc", "m0 m1 m2"),
    ("aabbc", "m0 m1 m2 m3 m4"),  # nobody is blamed
    ("aab", "m2"), ("baaa", "m0"), ("aaabc", "m3 m4"), ("aaaaaabb", "m6 m7"),
])  # fmt: skip
def test_only_a_minority_is_named_and_without_a_majority_all_are(write, versions, named):
    drivers = {"a": "580.105.08", "b": "575.57.08", "c": "570.211.01"}
    paths = [
        write(f"m{place}", FINE, driver_version=drivers[letter]) for place, letter in enumerate(versions)
    ]
    (group,) = merge_reports(paths).groups
    assert group.machines == tuple(named.split())
    assert ("majority" in group.message) == (len(group.machines) == len(versions))
    if "majority" in group.message:
        for letter in set(versions):
            members = ", ".join(f"m{place}" for place, one in enumerate(versions) if one == letter)
            assert f"{drivers[letter]} on {versions.count(letter)} ({members})" in group.message


def test_versions_that_are_not_known_are_no_difference(write):
    unknown = write("d", FINE, driver_version=Missing(MissingReason.NOT_ASKED))
    assert merge_reports([write("a", FINE), unknown]).groups == ()


def write_run(folder, name, *findings, outcome=Outcome.FAIL, host="a1", **more):
    measurement = make_measurement(host=host, **more)
    path = folder / f"{name}.json"
    path.write_text(dumps(CollectiveReport(outcome, measurement, findings)))
    return str(path)


def test_one_fault_that_several_machines_tell_of_their_ranks_counts_once_at_the_machine_it_is_of(tmp_path):
    cut = NETWORK_HOST_CUT_OFF.finding(HostSubject("a4"), "a4 answers none of the other hosts")
    own = NETWORK_HOST_CUT_OFF.finding(HostSubject("a4"), "a4 reaches no other host")
    paths = [write_run(tmp_path, "rank0", cut), write_run(tmp_path, "rank3", own, host="a4")]
    merged = merge_reports(paths)
    (group,) = merged.groups
    assert (group.code, group.machines, group.count) == ("network.host_cut_off", ("a4",), 1)
    assert verdicts(merged) == {"a1": Outcome.FAIL, "a4": Outcome.FAIL}


def test_a_cut_between_two_machines_names_both(tmp_path):
    cut = NETWORK_HOSTS_PARTED.finding(
        LinkSubject(("a2", "a3"), "a3"), "the network between a2 and a3 is cut"
    )
    (group,) = merge_reports([write_run(tmp_path, "rank0", cut)]).groups
    assert group.machines == ("a2", "a3")


def test_a_report_of_ranks_that_claims_more_than_its_findings_is_not_believed(tmp_path):
    cut = NETWORK_HOST_CUT_OFF.finding(HostSubject("a4"), "a4 answers none of the other hosts")
    (machine,) = merge_reports([write_run(tmp_path, "rank0", cut, outcome=Outcome.PASS)]).machines
    assert (machine.verdict, machine.reason) == (
        Outcome.FAIL,
        "the report has pass, its findings have fail",
    )
