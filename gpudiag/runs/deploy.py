"""The files that put gpudiag to work on a site: a service's unit, alert rules, manifests, gates before jobs.

They lie in `deploy/` and `docs/ci/`; a wheel has them below `gpudiag/shipped` (pyproject.toml).
"""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import gpudiag
from gpudiag.errors import GpudiagError, UsageError

_PACKAGE = Path(gpudiag.__file__).parent


@dataclass(frozen=True, slots=True)
class FileSet:
    """Files that belong together: where they lie, and what to do with them, in a line or two."""

    name: str
    places: tuple[str, ...]  # files, or folders with all that is in them
    purpose: str
    use: str


FILE_SETS = {
    one.name: one
    for one in (
        FileSet(
            "systemd",
            ("deploy/systemd",),
            "The service on one machine.",
            "Copy into /etc/systemd/system; systemctl enable --now gpudiag",
        ),
        FileSet(
            "docker",
            ("Dockerfile", "constraints.txt"),
            "Images: slim (no torch), and full.",
            "docker build --build-arg SOURCE=... FOLDER (the Dockerfile shows how)",
        ),
        FileSet(
            "kubernetes",
            ("deploy/kubernetes",),
            "The service on every GPU node: a DaemonSet.",
            "kubectl apply -k FOLDER (kustomization.yaml shows what comes first)",
        ),
        FileSet(
            "helm",
            ("deploy/helm",),
            "The same as a Helm chart, with alerts and boards.",
            "helm install gpudiag FOLDER --namespace gpudiag (it prints what comes first)",
        ),
        FileSet(
            "prometheus",
            ("deploy/prometheus",),
            "Alert rules, their unit tests, and examples.",
            "Name gpudiag.rules.yml under rule_files; promtool test rules",
        ),
        FileSet(
            "grafana",
            ("deploy/grafana",),
            "Boards: all machines, one machine, one GPU.",
            "Import them in Grafana",
        ),
        FileSet(
            "slurm",
            ("docs/ci/slurm",),
            "Prolog and epilog: drain a node on which no job should start.",
            "Copy into /etc/slurm/gpudiag; set Prolog and Epilog in slurm.conf",
        ),
        FileSet(
            "kubernetes-job",
            ("docs/ci/kubernetes",),
            "A job that starts only on GPUs that pass.",
            "Put your image and command into job.yaml; kubectl apply -f job.yaml",
        ),
        FileSet(
            "github",
            ("docs/ci/github-actions.yml",),
            "A gate before the steps of a GitHub Actions job.",
            "Copy to .github/workflows/",
        ),
        FileSet(
            "gitlab",
            ("docs/ci/gitlab-ci.yml",),
            "A gate before the script of a GitLab CI job.",
            "Include it in .gitlab-ci.yml",
        ),
        FileSet(
            "horovod",
            ("tools/build_horovod.sh",),
            "Build Horovod for the torch that you have, and install it.",
            "sh FOLDER/build_horovod.sh PYTHON; it needs g++, cmake and make",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class ShippedFile:
    """A file of a set: its path below the set's folder, and its text."""

    path: str
    text: str
    executable: bool


def read_files(name: str) -> tuple[ShippedFile, ...]:
    """The files of the set `name`; of `name/path` the one at that path.

    Raises:
        UsageError: there is no such set, or no such file in it.
        GpudiagError: this installation lacks its files.
    """
    wanted, _, path = name.partition("/")
    if wanted not in FILE_SETS:
        raise UsageError(f"there are no files called {wanted!r}", hint="see `gpudiag deploy`")
    files = tuple(file for place in FILE_SETS[wanted].places for file in _read_place(place))
    if not path:
        return files
    one = tuple(file for file in files if file.path == path)
    if not one:
        there = ", ".join(f"{wanted}/{file.path}" for file in files)
        raise UsageError(f"{wanted} has no file {path!r}", hint=f"there are: {there}")
    return one


def write_files(files: tuple[ShippedFile, ...], folder: Path) -> tuple[Path, ...]:
    """The paths of the files, written into `folder`, which is made; nothing that differs is overwritten.

    Raises:
        UsageError: another file is in the way, or the folder cannot be written.
        GpudiagError: the disk is full.
    """
    try:
        for file in files:
            target = folder / file.path
            if os.path.lexists(target) and target.read_bytes() != file.text.encode():
                raise UsageError(
                    f"{target} exists and differs: it was not changed",
                    hint="remove it, or name another folder",
                )
        for file in files:
            _write(folder / file.path, file)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (GpudiagError if is_full else UsageError)(
            f"cannot write to {error.filename or folder}: {error.strerror or error}",
            hint="name a folder that you can write to",
        ) from error
    return tuple(folder / file.path for file in files)


def _write(target: Path, file: ShippedFile) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_text(file.text, encoding="utf-8")
        partial.chmod(partial.stat().st_mode | (0o111 if file.executable else 0))
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _read_place(place: str) -> list[ShippedFile]:
    """The files of one place, by name."""
    shipped = _PACKAGE / "shipped"
    top = (shipped if shipped.is_dir() else _PACKAGE.parent) / place  # a checkout has them beside the package
    paths = sorted(path for path in top.rglob("*") if path.is_file()) if top.is_dir() else [top]
    base = top if top.is_dir() else top.parent
    try:
        return [
            ShippedFile(
                path.relative_to(base).as_posix(), path.read_text(encoding="utf-8"), path.suffix == ".sh"
            )
            for path in paths
        ]
    except OSError as error:
        raise GpudiagError(
            f"this installation of gpudiag lacks {place}: {error.strerror}",
            hint="install it again, as a wheel",
        ) from error
