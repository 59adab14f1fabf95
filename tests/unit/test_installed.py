import json
import sys
from importlib import metadata
from importlib.metadata import PathDistribution
from pathlib import Path
from types import SimpleNamespace

import pytest

import gpudiag
from gpudiag import installed
from gpudiag.installed import command_for, install_command, pip_command, requirements_of, root_command

REQUIRES = """
click>=8.1
torch>=2.4; extra == "torch"
numpy>=1.26; extra == 'torch'
uvicorn>=0.32; extra == "serve"
uvloop>=0.20; (platform_python_implementation == "CPython") and extra == "serve"
gpudiag[serve,torch]; extra == "all"
"""


def distribution_of(folder: Path, noted: dict | None) -> PathDistribution:
    """An installed gpudiag as pip leaves it, with pip's note of where it came from."""
    info = folder / "gpudiag-0.1.0.dist-info"
    info.mkdir()
    lines = [f"Requires-Dist: {line}" for line in REQUIRES.strip().splitlines()]
    (info / "METADATA").write_text(
        "\n".join(["Metadata-Version: 2.4", "Name: gpudiag", "Version: 0.1.0", *lines, ""])
    )
    if noted is not None:
        (info / "direct_url.json").write_text(json.dumps(noted))
    return PathDistribution(info)


@pytest.fixture(autouse=True)
def pip_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_pip", lambda: "pip")
    monkeypatch.setattr(installed, "PathFinder", SimpleNamespace(find_spec=lambda name: name))


GIT = {"vcs": "git", "commit_id": "7921be1537eac1e97bc40179a57f0349c2aee67d"}
SOURCES = [
    (None, "pip install 'gpudiag[torch]'"),
    ({"url": "file://{here}/src", "dir_info": {}}, "pip install '{here}/src[torch]'"),
    ({"url": "file://{here}/src", "dir_info": {"editable": True}}, "pip install -e '{here}/src[torch]'"),
    ({"url": "file://{here}/a%20b.whl", "archive_info": {}}, "pip install '{here}/a b.whl[torch]'"),
    ({"url": "https://x.example/g.whl", "archive_info": {}},
        "pip install 'gpudiag[torch] @ https://x.example/g.whl'"),
    ({"url": "https://x.example/g", "vcs_info": GIT},
        "pip install 'gpudiag[torch] @ git+https://x.example/g@7921be1537ea'"),
    ({"url": "https://x.example/g", "vcs_info": {**GIT, "requested_revision": "v1"}, "subdirectory": "py"},
        "pip install 'gpudiag[torch] @ git+https://x.example/g@v1#subdirectory=py'"),
    ({"url": "https://ann:secret@x.example/g", "vcs_info": GIT},
        "pip install 'gpudiag[torch] @ git+https://x.example/g@7921be1537ea'"),
    ({"url": "ssh://git@x.example/g", "vcs_info": GIT},
        "pip install 'gpudiag[torch] @ git+ssh://git@x.example/g@7921be1537ea'"),
    ({"url": "file://{here}/gone", "dir_info": {}}, "pip install 'torch>=2.4' 'numpy>=1.26'"),
    ({"url": "file://{here}/gone.whl", "archive_info": {}}, "pip install 'torch>=2.4' 'numpy>=1.26'"),
]  # fmt: skip


@pytest.mark.parametrize(("noted", "command"), SOURCES, ids=range(len(SOURCES)))
def test_the_command_installs_from_where_this_gpudiag_came(noted, command, tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "a b.whl").touch()
    if noted is not None:
        noted = {**noted, "url": noted["url"].format(here=tmp_path)}
    assert command_for(distribution_of(tmp_path, noted), "torch") == command.format(here=tmp_path)


def test_an_extra_of_extras_is_taken_apart(tmp_path):
    found = requirements_of(distribution_of(tmp_path, None), "all")
    assert found == ("uvicorn>=0.32", "uvloop>=0.20", "torch>=2.4", "numpy>=1.26")


def test_the_installer_of_the_environment_is_named(tmp_path, monkeypatch):
    assert pip_command("torch", python="/opt/a b/bin/python") == "'/opt/a b/bin/python' -m pip install torch"
    monkeypatch.setattr(installed, "PathFinder", SimpleNamespace(find_spec=lambda name: None))
    assert pip_command("torch") == f"uv pip install --python {sys.executable} torch"
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "gpudiag"))
    (tmp_path / "gpudiag").mkdir()
    (tmp_path / "gpudiag" / "PEX-INFO").touch()
    assert pip_command("torch") == "python3 -m pip install torch"
    wheel = f"./gpudiag-{gpudiag.__version__}-py3-none-any.whl"
    assert install_command("torch") == f"python3 -m pip install '{wheel}[torch]'"
    (tmp_path / "gpudiag" / "PEX-INFO").unlink()
    (tmp_path / "gpudiag" / "pipx_metadata.json").touch()
    assert pip_command("torch") == "pipx runpip gpudiag install torch"


def test_a_checkout_that_is_not_installed_is_a_source_too(monkeypatch):
    def nothing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
    root = Path(installed.__file__).parents[1]
    assert install_command("serve") == f"pip install '{root}[serve]'"


def test_no_other_file_of_the_package_says_pip_install_with_an_extra():
    """The name on the index may be another's: every such command is made by `install_command`."""
    package = Path(installed.__file__).parent
    saying = [
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.suffix in (".py", ".toml") and "pip install 'gpudiag" in path.read_text("utf-8")
    ]
    assert saying == []


def test_the_command_as_root_is_one_that_sudo_finds(tmp_path, monkeypatch):
    monkeypatch.setattr(installed, "_PATH_OF_SUDO", str(tmp_path / "usr"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "my venv"))
    monkeypatch.setattr(sys, "executable", "/opt/python3")
    assert root_command("hang 7") == "sudo /opt/python3 -m gpudiag hang 7"
    for folder, command in (
        ("my venv/bin", f"sudo '{tmp_path}/my venv/bin/gpudiag'"),
        ("usr", "sudo gpudiag"),
    ):
        program = tmp_path / folder / "gpudiag"
        program.parent.mkdir(parents=True)
        program.touch(0o755)
        assert root_command("hang 7") == f"{command} hang 7"


def test_no_other_message_says_sudo_gpudiag():
    package = Path(gpudiag.__file__).parent
    # A help's example, and what is run outside of the container, by another gpudiag.
    allowed = {"installed.py": 1, "cli/hang.py": 1, "probe/job/permission.py": 1}
    found = {
        str(path.relative_to(package)): path.read_text().count("sudo gpudiag")
        for path in package.rglob("*.py")
    }
    assert {place: count for place, count in found.items() if count} == allowed
