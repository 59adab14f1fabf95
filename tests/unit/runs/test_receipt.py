"""A receipt: any byte that is changed is found, ssh-keygen alone verifies it, and it holds no secret."""

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpudiag.errors import GpudiagError, UsageError
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing
from gpudiag.model.receipt import Receipt, Signature
from gpudiag.render.receipt_page import render_receipt_page
from gpudiag.render.sealed import DOCUMENT_HEAD, read_sealed, render_sealed, seal
from gpudiag.runs import receipt as recipe
from gpudiag.runs.receipt import (
    NAMESPACE,
    look_at_receipt,
    read_receipt,
    receipt_paths,
    require_receipt,
    sign,
    why_changed,
    write_receipt,
)
from tests.unit.runs.receipts import SECRET, a_receipt

needs_ssh_keygen = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed: no signature can be made"
)
WHO = "site@example"


@pytest.fixture(scope="module")
def receipt() -> Receipt:
    return a_receipt()


@pytest.fixture(scope="module")
def files(receipt: Receipt, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The document and the page of that receipt."""
    document, page = write_receipt(tmp_path_factory.mktemp("receipt") / "node17.json", receipt)
    return document, page


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key of its own, and the file of those that may sign beside it."""
    path = tmp_path_factory.mktemp("key") / "site_key"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", WHO, "-f", str(path)]
    subprocess.run(words, check=True, timeout=60)
    public = path.with_suffix(".pub").read_text()
    path.with_name("allowed_signers").write_text(f"{WHO} {public}")
    return path


def is_found(data: bytes) -> bool:
    """Whether it is found that these bytes are not what was written."""
    try:
        return why_changed(read_sealed(data)) is not None
    except UsageError:
        return True


def flipped(data: bytes, place: int, bits: int) -> bytes:
    return data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]


def places(data: bytes) -> Iterator[int]:
    """Places of all kinds: the head with the digest, both ends, around the document in a page, and many
    others.
    """
    head = data.find(DOCUMENT_HEAD.encode())
    yield from range(180)
    yield from range(len(data) - 20, len(data))
    yield from range(max(head, 0), max(head, 0) + 200)
    yield from random.Random(17).sample(range(len(data)), 300)


@pytest.mark.parametrize("which", [0, 1], ids=["document", "page"])
def test_any_byte_that_is_changed_is_found(files, which):
    data = files[which].read_bytes()
    assert not is_found(data)
    missed = [
        (place, bits)
        for place in places(data)
        for bits in (1, 0x20)
        if not is_found(flipped(data, place, bits))
    ]
    assert missed == []


@pytest.mark.parametrize("which", [0, 1], ids=["document", "page"])
def test_what_is_cut_off_added_or_moved_is_found(files, which):
    data = files[which].read_bytes()
    others = (
        data[:-1],
        data + b" ",
        b" " + data,
        data.replace(b"\n", b"\r\n", 1),
        data[: len(data) // 2],
        data.replace(b", ", b",", 1),
    )
    assert all(is_found(other) for other in others if other != data)


def test_a_page_that_was_given_a_new_digest_does_not_hide_its_changed_document(files):
    page = files[1].read_text()
    start = page.index(DOCUMENT_HEAD)
    changed = page[:start] + page[start:].replace("1650000000001", "1650000000002", 1)
    stated = read_sealed(page.encode()).stated
    again = seal(changed.replace(stated, "0" * len(stated), 1)).encode()
    assert read_sealed(again).is_whole
    assert "document in the page" in str(why_changed(read_sealed(again)))


def test_the_page_holds_the_document_byte_for_byte(files):
    document, page = (path.read_bytes() for path in files)
    assert read_sealed(page).document == document
    assert read_receipt(files[1])[1] == read_receipt(files[0])[1]


def test_the_digest_can_be_made_by_the_usual_programs(files):
    """`sed s/DIGEST/000../ FILE | sha256sum`, as the page of documentation has it."""
    stated = read_sealed(files[0].read_bytes()).stated
    words = f"sed 's/{stated}/{'0' * 64}/' '{files[0]}' | sha256sum"
    done = subprocess.run(words, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split()[0] == stated


def test_it_has_parts_versions_speeds_limits_and_what_was_skipped(receipt):
    assert {part.serial for part in receipt.parts} == {"1650000000001"}
    versions = {one.name: one.version for one in receipt.versions}
    assert versions["driver"] == receipt.report.snapshot.driver_version
    slow = [one for one in receipt.speeds if one.outcome not in (None, Outcome.PASS)]
    assert {(one.metric, one.name) for one in slow} == {("memory_copy", "memory copy")}
    assert all(fact.limit is not None and fact.source for one in slow for fact in one.held_against)
    ran = {result.check for result in receipt.report.results}
    assert ran == {one.check for one in receipt.checks}
    assert not ran & set(receipt.not_run)
    assert all(one.limits for one in receipt.checks if one.check == "bandwidth.memory")
    assert all(one.reason for one in receipt.report.results if one.outcome is Outcome.SKIP)


def test_it_holds_no_secret_no_user_and_nothing_that_a_page_would_run(receipt, files):
    said = replace(
        receipt, command=f"gpudiag preflight --token {SECRET} '</script><script>alert(1)</script>'"
    )
    document = render_sealed(said)
    page = render_receipt_page(said, document, "sha256:0")
    for text in (document, page, *(path.read_text() for path in files)):
        assert SECRET not in text
        assert "train.py" not in text
        assert '"ann"' not in text
        assert "<script>alert" not in text
    assert page.count("</script>") == 1


def test_the_page_names_no_other_file_and_no_other_host(files):
    page = files[1].read_text().partition(DOCUMENT_HEAD)[0]
    assert "http" not in page
    assert not any(word in page for word in ("src=", "href=", "@import", "url("))


# --- signatures


def verify(file: Path, key: Path, who: str = WHO) -> int:
    """What ssh-keygen alone says, by the command in the documentation."""
    signers = key.with_name("allowed_signers")
    words = [
        "ssh-keygen",
        "-Y",
        "verify",
        "-f",
        str(signers),
        "-I",
        who,
        "-n",
        NAMESPACE,
        "-s",
        f"{file}.sig",
    ]
    with file.open("rb") as data:
        return subprocess.run(words, stdin=data, capture_output=True, timeout=60).returncode


@needs_ssh_keygen
def test_ssh_keygen_alone_verifies_both_files_and_finds_a_change(receipt, key, tmp_path):
    files = write_receipt(tmp_path / "signed", receipt, key)
    for file in files:
        assert verify(file, key) == 0
        assert verify(file, key, "another@example") != 0
        data = file.read_bytes()
        for place in (0, 60, len(data) // 2, len(data) - 1):
            file.write_bytes(flipped(data, place, 1))
            assert verify(file, key) != 0
        file.write_bytes(data)


@needs_ssh_keygen
def test_a_change_with_a_new_digest_is_found_by_the_signature(receipt, key, tmp_path):
    document, _ = write_receipt(tmp_path / "signed", receipt, key)
    text = document.read_text().replace("1650000000001", "1650000000002", 1)
    stated = read_sealed(text.encode()).stated
    document.write_text(seal(text.replace(stated, "0" * len(stated), 1)))
    found = look_at_receipt(document, key.with_name("allowed_signers"))
    assert (found.outcome, found.whole) == (Outcome.FAIL, True)
    assert "signature does not fit" in found.words


@needs_ssh_keygen
def test_any_byte_that_is_changed_in_the_signature_is_found(receipt, key, tmp_path):
    document, _ = write_receipt(tmp_path / "signed", receipt, key)
    assert look_at_receipt(document).outcome is Outcome.PASS
    signature = document.with_name("signed.json.sig")
    data = signature.read_bytes()
    places = {*range(0, 31, 6), 29, *range(30, len(data), 37), len(data) - 1, data.index(b"\n", 40)}
    missed = []
    for place in sorted(places):
        signature.write_bytes(flipped(data, place, 1))
        missed += [place] if look_at_receipt(document).outcome is not Outcome.FAIL else []
    assert missed == []


@needs_ssh_keygen
def test_the_signer_is_named_and_a_stranger_s_key_is_refused(receipt, key, tmp_path):
    document, page = write_receipt(tmp_path / "signed", receipt, key)
    for file in (document, page):
        found = look_at_receipt(file, key.with_name("allowed_signers"))
        assert isinstance(found.signature, Signature)
        assert (found.outcome, found.signature.signer) == (Outcome.PASS, WHO)
        assert found.signature.key.startswith("ED25519 SHA256:")
    strangers = tmp_path / "strangers"
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True, timeout=60)
    strangers.write_text(f"else@example {other.with_suffix('.pub').read_text()}")
    found = look_at_receipt(document, strangers)
    assert found.outcome is Outcome.FAIL
    assert "none of" in found.words


def test_a_receipt_without_a_signature_is_no_pass_where_signers_are_named(files, tmp_path):
    (tmp_path / "allowed_signers").write_text("")
    found = look_at_receipt(files[0], tmp_path / "allowed_signers")
    assert found.outcome is Outcome.FAIL
    assert "not signed" in found.words
    assert look_at_receipt(files[0]).outcome is Outcome.PASS


@needs_ssh_keygen
def test_without_ssh_keygen_a_signature_is_not_called_good(receipt, key, tmp_path, monkeypatch):
    document, _ = write_receipt(tmp_path / "signed", receipt, key)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = look_at_receipt(document)
    assert found.outcome is Outcome.ERROR
    assert isinstance(found.signature, Missing)
    with pytest.raises(UsageError, match="ssh-keygen is not installed"):
        require_receipt(tmp_path / "other", key)


# --- wrong input


def test_a_key_that_is_not_there_or_none_is_refused_before_the_work(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        require_receipt(tmp_path / "receipt", tmp_path / "no_key")
    if shutil.which("ssh-keygen"):
        (tmp_path / "no_key").write_text("not a key")
        (tmp_path / "no_key").chmod(0o600)
        with pytest.raises(UsageError, match="does not sign"):
            require_receipt(tmp_path / "receipt", tmp_path / "no_key")
    assert [path.name for path in tmp_path.iterdir() if path.suffix in (".json", ".html", ".sig")] == []


@pytest.mark.parametrize("name", ["node17", "node17.json", "node17.html"])
def test_a_receipt_is_two_files_by_any_of_their_names(tmp_path, name):
    assert receipt_paths(tmp_path / name) == (tmp_path / "node17.json", tmp_path / "node17.html")
    assert receipt_paths(Path("n.example.org")) == (Path("n.example.org.json"), Path("n.example.org.html"))


def test_a_full_disk_keeps_both_older_files(receipt, tmp_path, monkeypatch):
    document, page = write_receipt(tmp_path / "node17", receipt)
    before = {path: path.read_bytes() for path in (document, page)}
    written = Path.write_text

    def write(path: Path, *arguments: object, **named: object) -> int:
        if ".html" in path.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(path, *arguments, **named)

    monkeypatch.setattr(Path, "write_text", write)
    with pytest.raises(GpudiagError, match="No space left"):
        write_receipt(tmp_path / "node17", replace(receipt, level="quick"))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_older_signature_does_not_stay_beside_a_receipt_without_one(receipt, tmp_path):
    (tmp_path / "node17.json.sig").write_text("of another receipt")
    write_receipt(tmp_path / "node17", receipt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["node17.html", "node17.json"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "no receipt"),
        ("", "no receipt"),
        ('{"schema": "gpudiag.report/1"}', "no receipt"),
        (f'{{"schema": "gpudiag.receipt/9", "digest": "sha256:{"0" * 64}"}}', "does not know the schema"),
    ],
)
def test_what_is_no_receipt_is_the_caller_s_mistake(tmp_path, text, words):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        look_at_receipt(path)


def test_a_receipt_whose_first_line_was_changed_is_told_as_changed(files, tmp_path):
    data = files[1].read_bytes()
    path = tmp_path / "changed.html"
    path.write_bytes(flipped(data, data.index(b"<html") + 2, 1))
    assert look_at_receipt(path).outcome is Outcome.FAIL


def test_signing_waits_no_longer_than_it_may(monkeypatch, tmp_path):
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("ssh-keygen", 1)

    monkeypatch.setattr(recipe.subprocess, "run", hang)
    with pytest.raises(GpudiagError, match="no answer within"):
        sign(b"", tmp_path)
