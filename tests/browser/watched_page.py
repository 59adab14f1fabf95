"""A page that is watched while it is open: what it logs, where it asks, what axe says."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

AXE = Path(__file__).parents[2] / "api/dashboard/node_modules/axe-core/axe.min.js"
DESKTOP = (1280, 800)
PHONE = (360, 800)
LOOKS = ((DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "dark"), (PHONE, "light"))
# Charts follow a new size, and colours a new scheme, with the frame after the next.
NEXT_FRAME = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
WAIT_MS = 10_000  # proves that it comes at all
# What a colour scheme can break; all the rest is the same in both, and takes a browser a second of work.
OF_COLOURS = ["color-contrast", "link-in-text-block"]
WCAG_AA = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# Nothing is loaded again for axe (only its rule on sound wants that, and there is none), and no list made of
# what passed.
AXE_RUN = "wanted => axe.run(document, {runOnly: wanted, resultTypes: ['violations'], preload: false})"


@dataclass
class WatchedPage:
    """One open page, with what it did."""

    page: Any
    address: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, view: str = "") -> None:
        """Show a view of the service."""
        self.page.goto(f"{self.address}#/{view}")

    def sees(self, text: str) -> None:
        """Wait until the text is there."""
        self.page.get_by_text(text).first.wait_for(timeout=WAIT_MS)

    def strangers(self) -> list[str]:
        """The requests that went anywhere but to the service."""
        home = urlsplit(self.address).netloc
        return [
            url for url in self.requests if urlsplit(url).scheme != "data" and urlsplit(url).netloc != home
        ]

    def is_wider_than_the_screen(self) -> bool:
        """Whether one must scroll sideways to read it, also when its charts have had time to follow."""
        for _ in range(30):
            if not self.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                return False
            self.page.wait_for_timeout(100)
        return True

    def flaws_in_every_look(self) -> list[str]:
        """What is wrong with the view on a desk and on a phone, in light and dark."""
        flaws = []
        for (
            size,
            colours,
        ) in LOOKS:  # what is there is checked where it is light, and colours where it is dark too
            self.page.set_viewport_size({"width": size[0], "height": size[1]})
            self.page.emulate_media(color_scheme=colours)
            self.page.evaluate(NEXT_FRAME)
            found = self.violations(of_colours=colours == "dark")
            if self.is_wider_than_the_screen():
                found.append("one must scroll sideways")
            flaws += [f"{size[0]} px, {colours}: {flaw}" for flaw in found]
        return flaws

    def violations(self, *, of_colours: bool = False) -> list[str]:
        """What axe finds against WCAG AA and good practice, or of that against colours alone, with the
        places.
        """
        # Through the debugger, as the page's own policy lets no foreign script in.
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text())
        wanted = {"type": "rule", "values": OF_COLOURS} if of_colours else {"type": "tag", "values": WCAG_AA}
        found = self.page.evaluate(AXE_RUN, wanted)
        return [
            f"{violation['id']}: {node['html'][:160]} {node['failureSummary']}"
            for violation in found["violations"]
            for node in violation["nodes"]
        ]


@dataclass(frozen=True)
class Browsing:
    """A browser that opens watched pages."""

    browser: Any

    @contextmanager
    def page(
        self, address: str, size: tuple[int, int] = DESKTOP, colours: str = "light", **options: Any
    ) -> Iterator[WatchedPage]:
        """A page in a profile of its own."""
        context = self.browser.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=colours, **options
        )
        try:
            yield watch(context, address)
        finally:
            context.close()


def watch(context: Any, address: str) -> WatchedPage:
    """A new page of that profile."""
    page = context.new_page()
    watched = WatchedPage(page, address)
    page.on(
        "console",
        lambda message: (
            watched.complaints.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on("request", lambda request: watched.requests.append(request.url))
    return watched
