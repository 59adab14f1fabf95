"""`make release`: what cannot be built is named and fails it, and what is handed out can be verified."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gpudiag import __version__
from tests.api.test_chart import VERSIONS
from tools.measure_installs import WAYS
from tools.release import __main__ as release_command
from tools.release import part
from tools.release.image import Builder, find_builder
from tools.release.packages import LAUNCHER, about_gpudiag, description
from tools.release.part import NotBuiltError, Release
from tools.release.signing import NAMESPACE, sign, write_sums

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github/workflows/release.yml"


def make_release(tmp_path: Path, key: Path | None = None) -> Release:
    return Release(
        "1.2.3", tmp_path, tmp_path / "work", tmp_path / "tools", 1_700_000_000, "", "gpudiag", "", key
    )


def program(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def run_release(monkeypatch: pytest.MonkeyPatch, folder: Path, without: list[str]) -> int:
    """The exit status of a release of two parts, of which one cannot be built."""

    def fails(_: Release) -> list[Path]:
        raise NotBuiltError("its builder is not installed")

    def works(release: Release) -> list[Path]:
        (release.folder / "file").write_text("x")
        return [release.folder / "file"]

    options = argparse.Namespace(
        folder=folder, without=without, key=None, image_repository="gpudiag", python_image="", tag=None
    )
    monkeypatch.setattr(release_command, "PARTS", {"image": fails, "checksums": works})
    monkeypatch.setattr(release_command, "read_options", lambda: options)
    monkeypatch.setattr(release_command, "ensure_environment", lambda: folder)
    return release_command.main()


def test_a_part_that_cannot_be_built_fails_the_release_and_the_others_are_built(
    monkeypatch, tmp_path, capsys
):
    assert run_release(monkeypatch, tmp_path / "out", []) == 1
    printed = capsys.readouterr()
    assert "image: not built: its builder is not installed" in printed.err
    listed = (tmp_path / "out/RELEASE.md").read_text()
    assert "- image: its builder is not installed" in listed
    assert "make release WITHOUT=image" in listed
    assert "| file |" in listed


def test_a_part_that_is_left_out_on_purpose_is_named_and_does_not_fail_it(monkeypatch, tmp_path):
    assert run_release(monkeypatch, tmp_path / "out", ["image"]) == 0
    assert "- image: left out" in (tmp_path / "out/RELEASE.md").read_text()


def test_an_unknown_part_to_leave_out_is_refused():
    command = [sys.executable, "-m", "tools.release", "--without", "imag"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "there is no part 'imag'" in done.stderr


def test_a_tag_is_that_of_the_version_and_its_changes_are_dated(monkeypatch, tmp_path):
    assert "the tag must be" in release_command.wrong_tag("v9.9.9")
    monkeypatch.setattr(release_command, "CHANGELOG", tmp_path / "CHANGELOG.md")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n")
    assert "no section" in release_command.wrong_tag(f"v{__version__}")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## [{__version__}] - 2026-12-01\n")
    assert release_command.wrong_tag(f"v{__version__}") is None


def test_without_a_builder_of_images_each_one_that_was_asked_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "docker", "echo cannot connect to the daemon >&2; exit 1")
    with pytest.raises(NotBuiltError) as refused:
        find_builder()
    assert "docker ended with status 1: cannot connect to the daemon" in str(refused.value)
    assert "podman is not installed; buildah is not installed" in str(refused.value)
    program(tmp_path, "buildah", "exit 0")
    assert find_builder() == Builder("buildah")


def test_a_command_that_does_not_end_is_ended_with_all_that_it_started(monkeypatch, tmp_path):
    """A pipe that its child holds shows the child's end: reading it returns."""
    monkeypatch.setattr(part, "LIMIT_SECONDS", 0.5)
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(NotBuiltError, match="sh had not ended"):
        part.call(["sh", "-c", f"sleep 600 > {tmp_path / 'pipe'} & wait"])
    os.set_blocking(pipe, True)
    with open(pipe, "rb") as read:
        assert read.read() == b""


def test_the_packages_program_runs_the_single_file_wherever_they_are_unpacked(tmp_path):
    python = Path("/usr/bin/python3")
    asked = "import sys; sys.exit(sys.version_info < (3, 10))"
    if not python.exists() or subprocess.run([python, "-c", asked], timeout=60).returncode != 0:
        pytest.skip("the system has no Python from 3.10 on")
    top = tmp_path / "a folder" / "usr"
    (top / "bin").mkdir(parents=True)
    (top / "lib/gpudiag").mkdir(parents=True)
    (top / "bin/gpudiag").write_text(LAUNCHER)
    (top / "bin/gpudiag").chmod(0o755)
    (top / "lib/gpudiag/gpudiag.pex").write_text(
        "import os, sys; print(sys.argv[1:], os.environ.get('PEX_ROOT')); sys.exit(3)"
    )
    link = tmp_path / "gpudiag"
    link.symlink_to(top / "bin/gpudiag")
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run([link, "a b", ""], env=environment, capture_output=True, text=True, timeout=60)
    root = "/var/lib/gpudiag/pex" if os.geteuid() == 0 else None
    assert (done.stdout, done.returncode) == (f"['a b', ''] {root}\n", 3)


def test_the_packages_need_a_python_from_3_10_on(tmp_path):
    overrides = description(make_release(tmp_path), tmp_path)["overrides"]
    assert overrides["deb"]["depends"][0].startswith("python3 (>= 3.10) | python3.11")
    assert overrides["rpm"]["depends"][0].startswith("(python3 >= 3.10 or python3.11")


def test_the_sbom_is_about_gpudiag_and_names_no_path_of_the_builder():
    own = {
        "name": "gpudiag",
        "type": "library",
        "bom-ref": "gpudiag==1",
        "externalReferences": [{"type": "distribution", "url": "file:///x/gpudiag.whl"}],
    }
    listed = about_gpudiag({"metadata": {"tools": []}, "components": [own, {"name": "click"}]})
    assert listed["metadata"]["component"] == {
        "name": "gpudiag",
        "type": "application",
        "bom-ref": "gpudiag==1",
    }
    assert [one["name"] for one in listed["components"]] == ["click"]
    with pytest.raises(NotBuiltError):
        about_gpudiag({"components": []})


def test_the_sums_and_their_signature_are_verified_by_the_usual_programs(tmp_path):
    folder, key = tmp_path / "out", tmp_path / "key"
    folder.mkdir()
    (folder / "gpudiag.whl").write_text("wheel")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=60)
    release = make_release(folder, key)
    write_sums(release)
    (signature,) = sign(release)
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True, timeout=60)
    signers = tmp_path / "signers"
    signers.write_text(f"release {key.with_suffix('.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", signers, "-I", "release", "-n", NAMESPACE, "-s", signature]
    sums = (folder / "SHA256SUMS").read_bytes()
    statuses = [
        subprocess.run(verify, input=content, capture_output=True, timeout=60).returncode
        for content in (sums, sums.replace(b"gpudiag", b"another"))
    ]
    assert statuses[0] == 0
    assert statuses[1] != 0
    with pytest.raises(NotBuiltError, match="no key was given"):
        sign(make_release(folder))


def test_the_workflow_uses_what_there_is_and_the_page_names_what_a_person_sets():
    text, page = WORKFLOW.read_text(), (ROOT / "docs/publishing.md").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    published = [name for name, job in jobs.items() if "write" in job["permissions"].values()]
    assert published == ["publish", "index"]
    assert all("github.ref_type == 'tag'" in jobs[name]["if"] for name in published)
    settings = set(re.findall(r"\b(?:vars|secrets)\.(\w+)", text)) | {
        jobs[name]["environment"] for name in published
    }
    assert [one for one in sorted(settings) if f"`{one}`" not in page] == []
    ways = re.search(r"--ways (.*?) >>", text)[1]
    assert {one or two for one, two in re.findall(r'"([^"]+)"|(\S+)', ways)} <= set(WAYS)
    assert re.search(r"for version in ([\d. ]+);", text)[1].split() == [f"{one}.0" for one in VERSIONS]
