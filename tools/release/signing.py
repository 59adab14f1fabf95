"""SHA256SUMS of everything that is handed out, and its signature by an SSH key."""

import hashlib
from pathlib import Path

from tools.release.part import NotBuiltError, Release, call

# `ssh-keygen -Y verify -n`: a signature that was made for something else does not count.
NAMESPACE = "gpudiag-release"


def write_sums(release: Release) -> list[Path]:
    """SHA256SUMS, for `sha256sum --check`."""
    target = release.folder / "SHA256SUMS"
    files = sorted(path for path in release.folder.iterdir() if path.is_file() and path != target)
    target.write_text("".join(f"{_sum(path)}  {path.name}\n" for path in files))
    return [target]


def _sum(path: Path) -> str:
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            whole.update(block)
    return whole.hexdigest()


def sign(release: Release) -> list[Path]:
    """SHA256SUMS.sig, for `ssh-keygen -Y verify`.

    Raises:
        NotBuiltError: no key was given, or ssh-keygen refused it.
    """
    if release.key is None:
        raise NotBuiltError("no key was given: KEY=FILE names an SSH key")
    sums = release.folder / "SHA256SUMS"
    signature = sums.with_name(f"{sums.name}.sig")
    signature.unlink(missing_ok=True)
    call(["ssh-keygen", "-q", "-Y", "sign", "-f", release.key, "-n", NAMESPACE, sums])
    return [signature]
