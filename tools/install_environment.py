"""Makes the virtual environment that `make run` and `make test` use: VENV EXTRA.

PyTorch is what the calling interpreter already has, if it satisfies gpudiag. Otherwise it is
installed; on a machine without a trace of a GPU in the CPU build that pip can see, and where pip sees
only a CUDA build, this prints so, with the way to point pip at a CPU build, and continues.

Standard library only: it runs before anything is installed.
"""

import json
import subprocess
import sys
import sysconfig
import tempfile
import venv
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from shutil import which

OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (2, 4)
TESTED_TORCH = "torch==2.13.0"
REPOSITORY = Path(__file__).resolve().parents[1]


def main(environment: Path, extra: str) -> None:
    """Make the environment if it is not there, then install gpudiag with that extra into it."""
    if not (environment / "bin" / "python").exists():
        print(f"making {environment}", flush=True)
        venv.create(environment, with_pip=True, symlinks=True)
        share_outer_torch(environment)
    if not has_torch(environment):
        install_torch(environment)
    extras = [extra] if which("cc") or extra == "torch" else [extra, "compiler"]
    pip(environment, "install", "--quiet", "-c", "constraints.txt", "-e", f".[{','.join(extras)}]")


def share_outer_torch(environment: Path) -> None:
    """Let the environment see the packages of the calling interpreter, where that has a fit torch."""
    try:
        found = version("torch")
    except PackageNotFoundError:
        return
    if tuple(int(part) for part in found.split("+")[0].split(".")[:2]) < OLDEST_TORCH:
        return
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return
    print(f"using the torch {found} that {sys.executable} has", flush=True)
    inner = sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)})
    Path(inner, "outer_torch.pth").write_text(f"{Path(spec.origin).parents[1]}\n")


def has_torch(environment: Path) -> bool:
    """Whether the environment already has torch, its own or a shared one."""
    code = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"
    return subprocess.run([environment / "bin" / "python", "-c", code], check=False).returncode == 0


def install_torch(environment: Path) -> None:
    """Install the tested torch, with a note where pip would bring a CUDA build to a machine without a GPU."""
    if not traces_of_a_gpu():
        cuda_packages = cuda_packages_of(environment)
        if cuda_packages:
            print(
                "This machine shows no trace of a GPU, and pip would install torch with"
                f" {len(cuda_packages)} CUDA\n"
                "packages (several GB). To get a CPU build instead, stop this, choose CPU under 'Start\n"
                "Locally' on pytorch.org, set PIP_EXTRA_INDEX_URL to the address shown there, and run\n"
                "make again. Going on with the CUDA build.",
                flush=True,
            )
    print(f"installing {TESTED_TORCH}", flush=True)
    pip(environment, "install", "--quiet", TESTED_TORCH)


def traces_of_a_gpu() -> list[str]:
    """The places where this machine shows an NVIDIA GPU or its driver; empty if there is none."""
    places = [str(path) for path in (Path("/dev/dxg"), Path("/proc/driver/nvidia/version")) if path.exists()]
    places += [str(path) for path in Path("/dev").glob("nvidia*")]
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    return places + [str(path) for path in vendors if path.read_text().strip() == "0x10de"]


def cuda_packages_of(environment: Path) -> list[str]:
    """The CUDA packages that pip would install with torch; empty where it sees a CPU build."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        asked = pip(
            environment, "install", "--quiet", "--dry-run", "--report", str(report), TESTED_TORCH, fatal=False
        )
        if asked != 0:
            return []  # the real install prints why
        wanted = json.loads(report.read_text())["install"]
    names = [package["metadata"]["name"] for package in wanted]
    return [name for name in names if name.startswith(("nvidia-", "cuda-"))]


def pip(environment: Path, *arguments: str, fatal: bool = True) -> int:
    """The exit status of that environment's pip; a failure ends this program if `fatal`."""
    command = [str(environment / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *arguments]
    status = subprocess.run(command, cwd=REPOSITORY, check=False).returncode
    if status != 0 and fatal:
        sys.exit(
            f"make: pip could not install what gpudiag needs (exit status {status}); its words are above"
        )
    return status


if __name__ == "__main__":
    if sys.version_info < OLDEST_PYTHON:
        wanted = ".".join(map(str, OLDEST_PYTHON))
        sys.exit(
            f"gpudiag needs Python {wanted} or later; this is"
            f" {sys.version.split()[0]}: make PYTHON=python{wanted}"
        )
    main(Path(sys.argv[1]), sys.argv[2])
