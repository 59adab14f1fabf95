"""How this gpudiag was installed, and the commands that add what it lacks and run it as root.

Every message with `pip install` or `sudo gpudiag` has its command from here. pip notes where a package came
from, if not from an index, in `direct_url.json` (PEP 610); pipx and uv leave their own notes in the
environments that they make.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpudiag import __version__

if TYPE_CHECKING:
    from importlib.metadata import Distribution

NAME = "gpudiag"
_PATH_OF_SUDO = (
    "/usr/sbin:/usr/bin:/sbin:/bin"  # what every distribution's secure_path has; a user's PATH is not used
)
_COMMIT_DIGITS = 12
# Modules whose package has another name.
_MODULES = {"pynvml": "nvidia-ml-py", "grpc": "grpcio", "google": "protobuf", "sqlalchemy": "SQLAlchemy"}
_EXTRA = re.compile(r"""\bextra\s*==\s*['"]([^'"]+)['"]""")


def has_module(name: str) -> bool:
    """Whether a module can be imported here, without importing it."""
    return name in sys.modules or PathFinder.find_spec(name) is not None


def install_command(extra: str) -> str:
    """The command that adds an extra to this gpudiag, from where it was installed.

    Where that folder or file is gone, the command names the packages of the extra instead.
    """
    if _is_single_file():  # nothing can be added to it: the wheel of the same release has the extras
        return pip_command(f"./{NAME}-{__version__}-py3-none-any.whl[{extra}]")
    installed = _distribution()
    # None: run from a folder that is only on sys.path
    return _from_checkout(extra) if installed is None else command_for(installed, extra)


def command_for(installed: Distribution, extra: str) -> str:
    """What `install_command` names for an installed distribution."""
    noted = installed.read_text("direct_url.json")
    if noted is None:  # from an index, where it has its name
        return pip_command(f"{NAME}[{extra}]")
    words = _words_of(json.loads(noted), extra)
    return pip_command(*(words or requirements_of(installed, extra)))


def repair_command(module: str, python: str | None = None, *, is_there: bool = False) -> str:
    """The command that installs a package that an interpreter lacks, or one again that lacks a part."""
    top = module.partition(".")[0]
    again = ("--force-reinstall", "--no-deps") if is_there or top != module else ()
    return pip_command(*again, _MODULES.get(top, top), python=python)


def command_for_module(module: str, asked: str) -> str:
    """The command that installs a module which the package `asked`, or gpudiag where both are one, lacks.

    That is gpudiag with the extra that brings the package, so that versions stay those that go together.
    """
    installed = _distribution()
    if installed is None:
        return repair_command(module)
    wanted = _plain_name(_MODULES.get(asked, asked))
    extras = installed.metadata.get_all("Provides-Extra") or ()
    bringing = [extra for extra in extras if wanted in map(_name_of, requirements_of(installed, extra))]
    if not bringing:
        return repair_command(module)
    # The smallest of them: `all` has every package too.
    return install_command(min(bringing, key=lambda extra: len(requirements_of(installed, extra))))


def _name_of(requirement: str) -> str:
    return _plain_name(re.split(r"[\[<>=;~! ]", requirement, maxsplit=1)[0])


def _plain_name(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def root_command(words: str) -> str:
    """The command line that runs this gpudiag as root: by its path, unless sudo finds it by name."""
    if shutil.which(NAME, path=_PATH_OF_SUDO):
        return f"sudo {NAME} {words}"
    own = os.environ.get("PEX", "") if _is_single_file() else os.path.join(sys.prefix, "bin", NAME)
    if own and os.access(own, os.X_OK):
        return f"sudo {shlex.quote(own)} {words}"
    return f"sudo {shlex.quote(sys.executable or 'python3')} -m {NAME} {words}"


def requirements_of(installed: Distribution, extra: str) -> tuple[str, ...]:
    """The packages that an extra brings, without their markers: gpudiag is for Linux alone."""
    found: list[str] = []
    for line in installed.requires or ():
        requirement, _, marker = line.partition(";")
        if extra not in _EXTRA.findall(marker):
            continue
        own = re.match(rf"{NAME}\[([^\]]*)\]", requirement.strip())
        inner = [name.strip() for name in own[1].split(",")] if own else []
        found += [word for name in inner for word in requirements_of(installed, name)]
        found += [] if own else [requirement.strip()]
    return tuple(dict.fromkeys(found))


def pip_command(*words: str, python: str | None = None) -> str:
    """The command line that installs `words` for an interpreter; this one by default."""
    asked = " ".join(shlex.quote(word) for word in words)
    if python is not None:
        return f"{shlex.quote(python)} -m pip install {asked}"
    if _is_single_file():
        return f"python3 -m pip install {asked}"
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx runpip {prefix.name} install {asked}"
    # Not by importlib.util.find_spec: setuptools takes part in that, and clears distutils away where pip is
    # asked for.
    if PathFinder.find_spec("pip") is None:  # made by uv, which leaves pip out
        return f"uv pip install --python {shlex.quote(sys.executable)} {asked}"
    return f"{_pip()} install {asked}"


def _distribution() -> Distribution | None:
    """What was installed as gpudiag; None if nothing was. Loaded late: `gpudiag list` needs none of it."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution(NAME)
    except PackageNotFoundError:
        return None


def _is_single_file() -> bool:
    """Whether this runs from what pex unpacked (tools/build_single_file.py)."""
    return (Path(sys.prefix) / "PEX-INFO").exists()


def _pip() -> str:
    """`pip`, if that is this interpreter's; else the whole of it."""
    found = shutil.which("pip")
    if found is not None and os.path.dirname(found) == os.path.join(sys.prefix, "bin"):
        return "pip"
    return f"{shlex.quote(sys.executable or 'python3')} -m pip"


def _words_of(noted: dict[str, Any], extra: str) -> tuple[str, ...] | None:
    """What to install, from pip's own note; None where it came from a place that is gone."""
    from urllib.parse import unquote, urlsplit, urlunsplit

    url = str(noted["url"])
    parts = urlsplit(url)
    if parts.scheme == "file" and "vcs_info" not in noted:
        path = Path(unquote(parts.path))
        if not path.exists():
            return None
        editable = noted.get("dir_info", {}).get("editable", False)
        return (*(["-e"] if editable else []), f"{path}[{extra}]")
    clean = urlunsplit(
        parts._replace(netloc=parts.netloc.rpartition("@")[2] if parts.password else parts.netloc)
    )
    vcs = noted.get("vcs_info")
    if vcs is not None:
        revision = vcs.get("requested_revision") or vcs["commit_id"][:_COMMIT_DIGITS]
        clean = f"{vcs['vcs']}+{clean}@{revision}"
    subdirectory = noted.get("subdirectory")
    return (f"{NAME}[{extra}] @ {clean}" + (f"#subdirectory={subdirectory}" if subdirectory else ""),)


def _from_checkout(extra: str) -> str:
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").exists():
        return pip_command(f"{root}[{extra}]")
    return pip_command(f"{NAME}[{extra}]")
