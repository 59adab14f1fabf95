"""The page on a recording, as files for any web server, or opened from a disk."""

import base64
import gzip
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import hatch_build

ROOT = Path(__file__).parents[2]
SCRIPT = "build-recorded"  # of the dashboard's package.json
_PAGE, _INDEX = "recorded.html", "index.html"
_RECORDING = '<script type="application/json" id="gpudiag-recording">null</script>'


def build_page(folder: Path) -> None:
    """Build the page that plays a recording, without one, into a new folder.

    Raises:
        OSError, subprocess.SubprocessError: there is no npm, or it failed.
    """
    hatch_build.build(ROOT / hatch_build.SOURCE, folder, SCRIPT)


def write_site(page: Path, recording: dict[str, Any], folder: Path) -> None:
    """Write the built page with the recording in it; `folder` may be there, and its other files stay."""
    text = json.dumps(recording, ensure_ascii=False, separators=(",", ":"))
    packed = base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()
    html = (page / _PAGE).read_text(encoding="utf-8")
    if _RECORDING not in html:
        raise ValueError(f"{_PAGE} has no place for the recording")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(page / "assets", folder / "assets", dirs_exist_ok=True)
    shutil.copy(page / "licenses.md", folder)
    (folder / _INDEX).write_text(
        html.replace(_RECORDING, _RECORDING.replace("null", f'"{packed}"')), encoding="utf-8"
    )


def export(recording: dict[str, Any], folder: Path) -> None:
    """Build the page, and write it with the recording into the folder."""
    with tempfile.TemporaryDirectory(prefix="gpudiag-static-demo-") as work:
        page = Path(work, "page")
        build_page(page)
        write_site(page, recording, folder)
