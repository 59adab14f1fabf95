"""The image, of the release's own wheel, by docker, podman or buildah, saved as a file."""

import gzip
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from tools.release.environment import ROOT
from tools.release.part import NotBuiltError, Release, call

_ASK = {"docker": ("version",), "podman": ("info",), "buildah": ("info",)}
CONTEXT = ("Dockerfile", "constraints.txt")  # what `gpudiag deploy docker` writes


@dataclass(frozen=True, slots=True)
class Builder:
    """A program that builds images, and how it is called for each act."""

    program: str

    def build(self, folder: Path, name: str, options: list[str]) -> None:
        """Build the image of the folder under that name."""
        word = ["bud", "--format", "docker"] if self.program == "buildah" else ["build"]
        call([self.program, *word, *options, "--target", "slim", "--tag", name, folder])

    def save(self, name: str, target: Path) -> None:
        """Write the image into a file that `docker load` and `podman load` read."""
        if self.program == "buildah":
            call(["buildah", "push", name, f"docker-archive:{target}:{name}"])
        else:
            call([self.program, "save", "--output", str(target), name])

    def run(self, name: str, *words: str) -> str:
        """What the image's command prints."""
        if self.program != "buildah":
            return call([self.program, "run", "--rm", name, *words])
        container = call(["buildah", "from", "--pull-never", name]).strip()
        try:
            return call(["buildah", "run", container, "--", "gpudiag", *words])
        finally:
            call(["buildah", "rm", container])


def find_builder() -> Builder:
    """The first builder that answers. Raises NotBuiltError: none does; with what each printed."""
    reasons = []
    for program, words in _ASK.items():
        if shutil.which(program) is None:
            reasons.append(f"{program} is not installed")
            continue
        try:
            call([program, *words])
        except NotBuiltError as error:
            reasons.append(str(error))
        else:
            return Builder(program)
    raise NotBuiltError(f"no builder of images answers: {'; '.join(reasons)}. Start one of them")


def image_name(release: Release) -> str:
    """The image's name and tag."""
    return f"{release.image_repository}:{release.version}"


def build_image(release: Release) -> list[Path]:
    """The slim image, as a compressed file.

    Raises:
        NotBuiltError: there is no wheel, no builder, or it failed.
    """
    if not release.wheel.exists():
        raise NotBuiltError("it is built of the wheel, which was not built")
    builder = find_builder()
    folder = release.work / "image"
    folder.mkdir(parents=True)
    for source in (*(ROOT / name for name in CONTEXT), release.wheel):
        shutil.copy(source, folder)
    arguments = {"SOURCE": f"./{release.wheel.name}"}
    if release.python_image:
        arguments["PYTHON_IMAGE"] = release.python_image
    labels = {"version": release.version, "licenses": "Apache-2.0", "title": "gpudiag"}
    if release.url:
        labels["source"] = release.url
    options = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    options += [
        word
        for key, value in labels.items()
        for word in ("--label", f"org.opencontainers.image.{key}={value}")
    ]
    builder.build(folder, image_name(release), options)
    printed = builder.run(image_name(release), "--version")
    if release.version not in printed:
        raise NotBuiltError(f"`gpudiag --version` of the image prints {printed.strip()!r}")
    whole = release.work / "image.tar"
    builder.save(image_name(release), whole)
    target = release.folder / f"gpudiag-{release.version}-image-{platform.machine()}.tar.gz"
    with (
        whole.open("rb") as plain,
        target.open("wb") as packed,
        gzip.GzipFile("", "wb", 6, packed, mtime=release.epoch) as writer,
    ):
        shutil.copyfileobj(plain, writer, 1 << 20)
    print(
        f"  {image_name(release)}, built by {builder.program}:"
        f" {whole.stat().st_size / 1e6:.0f} MB uncompressed"
    )
    whole.unlink()
    return [target]
