"""Building the page into the package: when it is built anew, and that an install goes on without it."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import hatch_build
from hatch_build import DashboardBuildHook, digest, is_built


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    source = tmp_path / hatch_build.SOURCE
    (source / "src").mkdir(parents=True)
    (source / "src/main.tsx").write_text("first\n")
    (source / "node_modules").mkdir()
    (tmp_path / hatch_build.STATIC).parent.mkdir(parents=True)
    return tmp_path


def hook(checkout: Path, warnings: list[str]) -> DashboardBuildHook:
    app = SimpleNamespace(display_warning=warnings.append)
    return DashboardBuildHook(str(checkout), {}, None, None, str(checkout), "wheel", app)


def put_page(checkout: Path) -> None:
    static = checkout / hatch_build.STATIC
    static.mkdir()
    (static / "index.html").write_text("<!doctype html>")
    (static / hatch_build.STAMP).write_text(digest(checkout / hatch_build.SOURCE))


def no_npm(_environment: dict[str, str]) -> list[str]:
    raise FileNotFoundError("there is no npm")


def failing_npm(_environment: dict[str, str]) -> list[str]:
    return ["false"]


@pytest.mark.parametrize("find", [no_npm, failing_npm])
def test_an_install_goes_on_without_the_page_and_says_so(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, find: object
) -> None:
    monkeypatch.setattr(hatch_build, "find_npm", find)
    monkeypatch.delenv("GPUDIAG_DASHBOARD", raising=False)
    warnings: list[str] = []
    hook(checkout, warnings).initialize("standard", {})
    assert len(warnings) == 1
    assert "without its dashboard" in warnings[0]
    assert not (checkout / hatch_build.STATIC).exists()


def test_a_page_that_cannot_be_built_leaves_the_old_one_alone(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hatch_build, "find_npm", failing_npm)
    put_page(checkout)
    (checkout / hatch_build.SOURCE / "src/main.tsx").write_text("second\n")
    hook(checkout, []).initialize("standard", {})
    assert (checkout / hatch_build.STATIC / "index.html").is_file()


def test_a_release_may_demand_the_page(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hatch_build, "find_npm", failing_npm)
    monkeypatch.setenv("GPUDIAG_DASHBOARD", "require")
    with pytest.raises(subprocess.CalledProcessError):
        hook(checkout, []).initialize("standard", {})


@pytest.mark.parametrize("wish", ["skip", ""])
def test_a_page_that_is_there_or_not_wanted_is_not_built(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:
    monkeypatch.setattr(hatch_build, "find_npm", no_npm)
    monkeypatch.setenv("GPUDIAG_DASHBOARD", wish)
    if not wish:
        put_page(checkout)
    warnings: list[str] = []
    hook(checkout, warnings).initialize("editable", {})
    assert warnings == []


def test_every_source_counts_and_what_npm_installs_does_not(checkout: Path) -> None:
    source, static = checkout / hatch_build.SOURCE, checkout / hatch_build.STATIC
    put_page(checkout)
    assert is_built(source, static)
    (source / "node_modules/left.js").write_text("x")
    assert is_built(source, static)
    (source / "src/more.tsx").write_text("")
    assert not is_built(source, static)


def test_node_is_asked_for_only_where_the_page_is_not_built(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUDIAG_DASHBOARD", raising=False)
    assert hook(checkout, []).dependencies() == [hatch_build.NODE]
    put_page(checkout)
    assert hook(checkout, []).dependencies() == []
