"""A folder of wheels for a machine without a network: installed for the run, and only for it."""

import lzma
import os
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tools.confirm_on_gpu.wheels import WheelsError, installed_wheels

NAME = "brought_along"


def make_wheel(folder: Path) -> None:
    info = f"{NAME}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{NAME}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{NAME}.py", "WORD = 'here'\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{NAME}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def test_wheels_are_there_within_the_run_and_nothing_stays(tmp_path: Path):
    make_wheel(tmp_path)
    before = (list(sys.path), os.environ.get("PYTHONPATH"), os.environ["PATH"])
    with installed_wheels(tmp_path) as library:
        assert library is None
        spec = find_spec(NAME)
        assert spec is not None
        assert spec.origin is not None
        place = Path(spec.origin).parent
        assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(place)
        assert os.environ["PATH"].split(os.pathsep)[0] == str(place / "bin")
    assert not place.exists()
    assert (list(sys.path), os.environ.get("PYTHONPATH"), os.environ["PATH"]) == before


def test_an_nccl_library_is_used_as_it_is_or_unpacked(tmp_path: Path):
    make_wheel(tmp_path)
    (tmp_path / "libnccl.so.2.xz").write_bytes(lzma.compress(b"packed"))
    with installed_wheels(tmp_path) as library:
        assert library is not None
        assert library.read_bytes() == b"packed"
    (tmp_path / "libnccl.so.2").write_bytes(b"plain")
    with installed_wheels(tmp_path) as library:
        assert library == (tmp_path / "libnccl.so.2").resolve()


def test_a_folder_that_cannot_be_used_is_said(tmp_path: Path):
    with pytest.raises(WheelsError, match="no wheel"), installed_wheels(tmp_path):
        pass
    (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(b"no zip")
    with pytest.raises(WheelsError, match="cannot install"), installed_wheels(tmp_path):
        pass
