"""The documentation as a site: it builds without a warning, every link of it leads somewhere, and older
versions stay.
"""

import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from gpudiag import __version__

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
EARLIER = "0.0.9"


class Page(HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self, text: str) -> None:
        """Read the page."""
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where the tag leads, and how it is called."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def git(*words: str, repository: Path) -> str:
    identity = ("-c", "user.name=site", "-c", "user.email=site@example.com")
    done = subprocess.run(
        ["git", "-C", str(repository), *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sites of an earlier version and of this one, as `make docs-version` puts them on a branch of a
    repository.
    """
    if not (BIN / "mike").exists():
        pytest.skip("sites of several versions need mike: pip install '.[docs]'")
    repository, out = (tmp_path_factory.mktemp(name) for name in ("repository", "site"))
    git("init", "-q", "-b", "gh-pages", repository=repository)
    for name, text in (
        ("versions.json", json.dumps([{"version": EARLIER, "title": EARLIER, "aliases": ["latest"]}])),
        (f"{EARLIER}/index.html", "<p>earlier</p>"),
        ("latest/index.html", "<p>earlier</p>"),
    ):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_text(text)
    git("add", ".", repository=repository)
    git("commit", "-q", "-m", "earlier", repository=repository)
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "GIT_DIR": str(repository / ".git"),
        "GIT_WORK_TREE": str(ROOT),
        "NO_MKDOCS_2_WARNING": "1",
        **{f"GIT_{who}_NAME": "site" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "site@example.com" for who in ("AUTHOR", "COMMITTER")},
    }
    for words in (
        ("deploy", "--update-aliases", "--alias-type", "copy", __version__, "latest"),
        ("set-default", "latest"),
    ):
        built = subprocess.run(
            [BIN / "mike", *words], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        assert built.returncode == 0, built.stdout + built.stderr
        assert "WARNING" not in built.stdout + built.stderr
    git("worktree", "add", "--detach", str(out / "all"), "gh-pages", repository=repository)
    return out / "all"


def test_the_site_builds_without_a_warning_and_keeps_older_versions(versions: Path) -> None:
    """A dead link, a dead anchor, a page that the navigation lacks: each is a warning, and mkdocs.yml is
    strict.
    """
    listed = json.loads((versions / "versions.json").read_text())
    assert [(one["version"], one["aliases"]) for one in listed] == [(__version__, ["latest"]), (EARLIER, [])]
    assert "earlier" in (versions / EARLIER / "index.html").read_text()
    for name in (__version__, "latest"):
        index = json.loads((versions / name / "search" / "search_index.json").read_text())
        assert any("gpudiag hang" in entry["title"] for entry in index["docs"])
    assert "latest" in (versions / "index.html").read_text()
    assert '"provider": "mike"' in (versions / "latest" / "index.html").read_text()


def test_every_link_of_the_site_leads_somewhere(versions: Path) -> None:
    """Those of the theme and of pictures too; addresses of others are not asked."""
    site = versions / "latest"
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    assert len(pages) > 80
    dead = [
        f"{path.relative_to(site)}: {link}"
        for path, page in pages.items()
        if path.name != "404.html"  # whose links begin at the server's root
        for link in page.links
        if not leads_somewhere(path, link, pages)
    ]
    assert dead == []
    assert sum(len(page.links) for page in pages.values()) > 2000


def leads_somewhere(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    address = urlsplit(link)
    if address.scheme or address.netloc:
        return True
    target = (path.parent / unquote(address.path)).resolve() if address.path else path
    if target.is_dir():
        target = target / "index.html"
    if not target.exists():
        return False
    anchors = pages[target].anchors if target in pages else None
    return not address.fragment or anchors is None or unquote(address.fragment) in anchors


@pytest.mark.parametrize(
    ("link", "leads"),
    [
        *(("../run/", True), ("../run/#how", True), ("../run/#nowhere", False)),
        *(("../nowhere/", False), ("#here", True), ("#nowhere", False)),
        *(("../images/no.svg", False), ("https://example.com/", True), ("../..", False)),
    ],
)
def test_a_link_that_leads_nowhere_is_found(tmp_path: Path, link: str, leads: bool) -> None:
    pages = {}
    for name, text in (("hang", '<a id="here">'), ("run", '<h2 id="how">')):
        path = tmp_path / "site" / name / "index.html"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        pages[path] = Page(text)
    assert leads_somewhere(tmp_path / "site" / "hang" / "index.html", link, pages) is leads
