"""Builds gpudiag as one file, for prologs and for machines where nothing may be installed.

    python -m tools.build_single_file FILE [WHEEL]

WHEEL is gpudiag's own, where it is built already. The file runs under any Python from 3.10 on: it holds pure
Python alone, so no extra. pex unpacks it into a virtual environment below ~/.cache/pex (PEX_ROOT moves it) on
its first run, from which the later ones start as fast as any installation; so the children that gpudiag
starts find it, and the environment of a user's job stays as it is.

The file is then tried on simulated machines: exit status 1 here, and a sentence, where it does not do what it
must.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path
from time import monotonic
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
PEX = "pex==2.105.2"
OLDEST = "3.10"
# What SQLAlchemy needs in turn; greenlet, which is compiled, serves only its asyncio part.
ALSO = ("typing_extensions",)
LIMIT_SECONDS = 300


def main(target: Path, wheel: Path | None = None) -> int:
    """The exit status: 0 where the file is built and works."""
    started = monotonic()
    with tempfile.TemporaryDirectory(prefix="gpudiag-single-") as folder:
        wheels = Path(folder, "wheels")
        venv.create(Path(folder, "tool"), with_pip=True, symlinks=True)
        python = str(Path(folder, "tool", "bin", "python"))
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PEX)
        names = ("gpudiag", *collect_wheels(python, wheels, wheel))
        target.parent.mkdir(parents=True, exist_ok=True)
        build(python, wheels, names, target)
        print(
            f"{target}: {target.stat().st_size / 1e6:.1f} MB, built in {monotonic() - started:.0f} s",
            flush=True,
        )
        faults = try_out(target, Path(folder, "pex"))
    for fault in faults:
        print(f"{target}: {fault}", file=sys.stderr)
    return 1 if faults else 0


def collect_wheels(python: str, folder: Path, wheel: Path | None) -> tuple[str, ...]:
    """Put gpudiag's wheel and those it needs, pure Python, into the folder; their names."""
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    if wheel is None:
        run(*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT))
    else:
        folder.mkdir()
        shutil.copy(wheel, folder)
    (own,) = folder.glob("gpudiag-*.whl")
    names = (*needed_by(own), *ALSO)
    pins = oldest_pins()
    for name in names:
        wanted = f"{name}=={pins[name.lower()]}"
        pure = (
            "--only-binary=:all:",
            "--platform=any",
            f"--python-version={OLDEST}",
            "--implementation=py",
            "--abi=none",
        )
        if run(*pip, "download", "--no-deps", *pure, "-d", str(folder), wanted, fatal=False) != 0:
            run(*pip, "wheel", "--no-deps", "-w", str(folder), wanted)  # an sdist, such as GPUtil's
    return names


def needed_by(wheel: Path) -> tuple[str, ...]:
    """The packages that the wheel needs without an extra, also those for the oldest Python alone."""
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    lines = [line for line in metadata.get_all("Requires-Dist", []) if "extra" not in line]
    return tuple(re.split(r"[\[<>=;~! ]", line, maxsplit=1)[0] for line in lines)


def oldest_pins() -> dict[str, str]:
    """The tested version of each package, for the oldest Python where there are two."""
    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        match = re.match(r"([\w.-]+)==([\w.]+)(; python_version >= )?", line)
        if match is not None and match[3] is None:
            pins[match[1].lower()] = match[2]
    return pins


def build(python: str, wheels: Path, names: Sequence[str], target: Path) -> None:
    """Build the file from these wheels alone."""
    run(
        python, "-m", "pex", "--no-index", "-f", str(wheels), "--intransitive", "--venv",
        "--python-shebang", "/usr/bin/env python3", "-c", "gpudiag", "-o", str(target), *names,
    )  # fmt: skip


PATIENCE = ("--deadline", "60")  # CI builds at the lowest priority beside its tests, and has no GPU to ask


def try_out(target: Path, pex_root: Path) -> list[str]:
    """What the file does not do as it must; empty if all is well."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(pex_root), "PEX_ROOT": str(pex_root)}
    target = target.resolve()
    pex_root.mkdir(exist_ok=True)

    def ask(*words: str) -> tuple[int, str]:
        command = [sys.executable, str(target), *words]
        done = subprocess.run(
            command,
            cwd=pex_root,  # `run` leaves its verdict where it is started
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    gate = (
        sys.executable,
        str(target),
        "preflight",
        "--level",
        "instant",
        "--fail-on",
        "machine",
        "--reason",
        *PATIENCE,
    )
    wanted = {
        ("--version",): (0, "gpudiag "),
        ("deploy", "slurm"): (0, "check_node prolog"),
        ("explain", "lint.zero_grad_missing"): (0, "optimizer.zero_grad()"),
        ("simulate", "h100x8", "--", sys.executable, str(target), "list", *PATIENCE): (0, "H100"),
        ("simulate", "h100x8", "--", *gate): (0, "gpudiag PASS"),
        ("simulate", "h100x8+lost:3", "--", *gate): (1, "gpu.lost"),
        ("run", "--", "env"): (0, f"PATH={environment['PATH']}\n"),
    }
    faults = []
    for words, (status, text) in wanted.items():
        got, printed = ask(*words)
        if got != status or text not in printed:
            faults.append(
                f"`{' '.join(words)}` exits {got}, and is to exit {status} and"
                f" print {text!r}: {printed[-500:]}"
            )
    return faults


def run(*command: str, fatal: bool = True) -> int:
    """The exit status of a command; a failure ends this program if `fatal`."""
    done = subprocess.run(command, cwd=ROOT, check=False, stderr=None if fatal else subprocess.DEVNULL)
    if done.returncode != 0 and fatal:
        sys.exit(
            f"build_single_file: {' '.join(command[:6])} ... exits {done.returncode}; its words are above"
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*(Path(word).absolute() for word in sys.argv[1:3])))
