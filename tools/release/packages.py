"""The deb and the rpm: single file and starter, packed by nfpm; and what an SBOM of gpudiag lists."""

import json
import os
import shutil
import sys
import venv
from datetime import datetime, timezone
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from tools.release.environment import ROOT
from tools.release.part import NotBuiltError, Release, call

PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
EXTRAS = "serve,hang,watch,kubernetes,postgres"
# The system's own interpreters alone: that of a job's environment may be too old, and is not ours to choose.
# The file is found from the program, so that a package also works where it was only unpacked.
LAUNCHER = f"""\
#!/bin/sh
# Starts gpudiag's single file with the first of the system's Pythons that is 3.10 or later.
# Root's copy of what it unpacks is in a folder that only root can write.
file="$(dirname "$(dirname "$(readlink -f "$0")")")/lib/gpudiag/gpudiag.pex"
[ "$(id -u)" != 0 ] || export PEX_ROOT="${{PEX_ROOT:-/var/lib/gpudiag/pex}}"
for python in python3 {" ".join(PYTHONS)}; do
	python="/usr/bin/$python"
	if [ -x "$python" ] && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
		exec "$python" "$file" "$@"
	fi
done
echo "gpudiag: /usr/bin has no Python from 3.10 on: install one, such as python3.12" >&2
exit 127
"""
REMOVED = "#!/bin/sh\nrm -rf /var/lib/gpudiag/pex\n"


def build_packages(release: Release, kind: str) -> list[Path]:
    """The `deb` or the `rpm`. Raises NotBuiltError: there is no single file, or nfpm refused."""
    if not release.single_file.exists():
        raise NotBuiltError("it holds the single file, which was not built")
    folder = release.work / kind
    folder.mkdir(parents=True)
    programs = {"gpudiag": LAUNCHER, "removed.sh": REMOVED}
    for name, text in programs.items():
        (folder / name).write_text(text)
    (folder / "nfpm.yaml").write_text(yaml.safe_dump(description(release, folder)))
    target = release.deb if kind == "deb" else release.rpm
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(release.epoch)}
    command = [release.tools / "nfpm", "package", "--config", folder / "nfpm.yaml", "--packager", kind]
    call([*command, "--target", target], environment=environment)
    return [target]


def description(release: Release, folder: Path) -> dict[str, object]:
    """What nfpm packs, and what each kind of package needs."""
    either = [f"python3 (>= 3.10) | {' | '.join(PYTHONS)}"], [f"(python3 >= 3.10 or {' or '.join(PYTHONS)})"]
    return {
        "name": "gpudiag",
        "arch": "all",
        "platform": "linux",
        "version": release.version,
        "release": "1",
        "section": "utils",
        "priority": "optional",
        "maintainer": "The gpudiag maintainers",
        "description": (
            "Are the GPUs of this machine fit to train on?\n"
            "If not: which part is to blame, who must act, and what to do."
        ),
        "license": "Apache-2.0",
        "mtime": _time(release.epoch),
        **({"homepage": release.url} if release.url else {}),
        "contents": [
            _file(release.single_file, "/usr/lib/gpudiag/gpudiag.pex", 0o755),
            _file(folder / "gpudiag", "/usr/bin/gpudiag", 0o755),
            _file(ROOT / "LICENSE", "/usr/share/doc/gpudiag/copyright", 0o644),
        ],
        "scripts": {"postremove": str(folder / "removed.sh")},
        "rpm": {"buildhost": "localhost"},  # not the name of the machine that built it
        "overrides": {"deb": {"depends": either[0]}, "rpm": {"depends": either[1]}},
    }


def _time(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _file(source: Path, target: str, mode: int) -> dict[str, object]:
    return {"src": str(source), "dst": target, "file_info": {"mode": mode}}


def build_sbom(release: Release) -> list[Path]:
    """The SBOM, in CycloneDX: the wheel with every extra but torch, by its tested versions.

    Raises:
        NotBuiltError: there is no wheel, or pip or cyclonedx-py failed.
    """
    if not release.wheel.exists():
        raise NotBuiltError("it lists what the wheel brings, and the wheel was not built")
    environment = release.work / "sbom"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    call([*pip, "-c", ROOT / "constraints.txt", f"{release.wheel}[{EXTRAS}]"])
    target = release.folder / f"gpudiag-{release.version}.cdx.json"
    command = [release.tools / "cyclonedx-py", "environment", "--output-reproducible", "--of", "JSON"]
    call(
        [*command, "-o", target, python], environment={**os.environ, "SOURCE_DATE_EPOCH": str(release.epoch)}
    )
    target.write_text(json.dumps(about_gpudiag(json.loads(target.read_text())), indent=2) + "\n")
    shutil.rmtree(environment)
    return [target]


def about_gpudiag(listed: dict[str, object]) -> dict[str, object]:
    """The SBOM with gpudiag as what it is about, and without the path of the wheel that was installed.

    Raises:
        NotBuiltError: gpudiag is not among the components.
    """
    components = listed["components"]
    assert isinstance(components, list)  # noqa: S101 - CycloneDX's own schema
    own = [one for one in components if one["name"] == "gpudiag"]
    if len(own) != 1:
        raise NotBuiltError(f"cyclonedx-py lists gpudiag {len(own)} times")
    kept = {key: value for key, value in own[0].items() if key != "externalReferences"}
    references = [one for one in own[0].get("externalReferences", []) if not one["url"].startswith("file:")]
    subject = {**kept, "type": "application", **({"externalReferences": references} if references else {})}
    metadata = listed.get("metadata")
    return {
        **listed,
        "metadata": {**(metadata if isinstance(metadata, dict) else {}), "component": subject},
        "components": [one for one in components if one is not own[0]],
    }
