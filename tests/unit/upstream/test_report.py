"""`python -m tools.upstream`: what it compares, what it prints, and how it ends."""

import subprocess
from pathlib import Path

import pytest

from tests.walking import walk
from tools.upstream import reach
from tools.upstream.__main__ import main, report
from tools.upstream.compare import NotRead, Settled, compare
from tools.upstream.reach import Live, Saved
from tools.upstream.sources import SOURCES, Source, settled_of

HELD = {"a": "1", "b": "2", "9": "", "10": ""}


def source(upstream: dict[str, str] | str, name: str = "one") -> Source:
    """A source that has those facts, or cannot be read for that reason."""

    def read(_reach: object) -> dict[str, str]:
        if isinstance(upstream, str):
            raise NotRead(upstream)
        return upstream

    return Source(name, "table.toml", lambda: HELD, read)


def test_new_gone_and_changed():
    moved = compare(HELD, {"a": "1", "b": "3", "10": "", "100": "x", "20": ""}, Settled())
    assert moved.new == (("20", ""), ("100", "x"))
    assert moved.gone == ("9",)
    assert moved.changed == (("b", "2", "3"),)


def test_what_is_settled_is_no_news_until_it_changes():
    settled = Settled(frozenset({"new"}), frozenset({"9"}), {"b": "3"})
    upstream = {"a": "1", "b": "3", "10": "", "new": ""}
    assert not compare(HELD, upstream, settled)
    assert compare(HELD, {**upstream, "b": "4"}, settled).changed == (("b", "3", "4"),)


@pytest.mark.parametrize("upstream", [{}, {"a": "1"}, {"unrelated": "1"}])
def test_a_text_of_another_form_is_not_taken_for_things_gone(upstream):
    with pytest.raises(NotRead, match="of the 4 names"):
        compare(HELD, upstream, Settled())


@pytest.mark.parametrize(
    ("upstreams", "status", "words"),
    [
        ([HELD, HELD], 0, "Nothing moved in 2 sources."),
        ([HELD, {**HELD, "c": "5"}], 1, "  new      c = 5"),
        ([HELD, "no route"], 3, "one: not compared: no route."),
        ([{**HELD, "c": "5"}, "no route"], 1, "Not compared, so nothing is known of: one."),
        ([{}, HELD], 3, "its form may have changed."),
    ],
)
def test_the_exit_status_and_the_words(capsys, upstreams, status, words):
    assert report([source(one) for one in upstreams], Live()) == status
    printed = capsys.readouterr().out
    assert words in printed
    assert ("Nothing moved" in printed) == (status == 0)


def test_where_nothing_can_be_reached_each_source_has_a_sentence(capsys, monkeypatch):
    def refuse(*_arguments: object, **_named: object) -> None:
        raise OSError("Name or service not known")

    def fail(command: list[str], **_named: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "ERROR: No matching distribution found\n")

    monkeypatch.setattr(reach.urllib.request, "urlopen", refuse)
    monkeypatch.setattr(reach.subprocess, "run", fail)
    assert main([]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": not compared: ")[0] for line in lines[:-1]] == [one.name for one in SOURCES]
    assert all(line.endswith(").") for line in lines[:-1])


def test_copies_in_a_folder_are_read(tmp_path, capsys):
    folder = tmp_path / "github/leptonai/gpud/components/accelerator/nvidia/xid"
    folder.mkdir(parents=True)
    held = next(one for one in SOURCES if one.name == "xid-catalogue").held()
    upstream = {**held, **(settled_of("xid-catalogue").values or {}), "79": "RESET_GPU", "200": "RESTART_BM"}
    (folder / "catalog_generated.go").write_text(
        "".join(
            f'{{Code: {code}, Mnemonic: "", Description: "x", ImmediateResolution: "{bucket}", }}\n'
            for code, bucket in upstream.items()
        )
    )
    assert main(["--saved", str(tmp_path), "--only", "xid-catalogue"]) == 1
    printed = capsys.readouterr().out
    assert "  new      200 = RESTART_BM" in printed
    assert "  changed  79: RESTART_BM became RESET_GPU" in printed
    assert main(["--saved", str(tmp_path), "--only", "nvml"]) == 3


@walk(SOURCES, lambda one: one.name)
def test_what_the_repository_holds_can_be_compared(one):
    held, settled = one.held(), settled_of(one.name)
    assert held
    assert not settled.left_out & set(held), "it is held, and settled as left out"
    assert settled.kept <= set(held), "it is settled as kept, and not held"
    assert set(settled.values or ()) <= set(held)
    files = [Path(word.strip(",;")) for word in one.table.split() if "/" in word]
    assert files
    assert all(path.exists() for path in files)


def test_a_member_that_a_wheel_lacks_is_said(monkeypatch, tmp_path):
    def download(command: list[str], **_named: object) -> subprocess.CompletedProcess[str]:
        import zipfile

        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "x.whl", "w") as archive:
            archive.writestr("there", b"1")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(reach.subprocess, "run", download)
    assert Live().read_members("x", ("there",)) == [b"1"]
    with pytest.raises(NotRead, match="no such file"):
        Live().read_members("x", ("gone",))
    with pytest.raises(NotRead, match="could not be read"):
        Saved(tmp_path).read_version("x")
