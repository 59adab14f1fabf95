"""What lies over the picture for a while: a question, the filter, the keys, the output of a command."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from gpudiag.linux.child import Program, with_import_path
from gpudiag.linux.loop_child import LoopReader
from gpudiag.model.untrusted_text import escape_steering
from gpudiag.render.style import wrapped
from gpudiag.watch.columns import cut
from gpudiag.watch.screen.pane import Pane
from gpudiag.watch.view import DIM, HEADING, PLAIN, Row, Span, Table

_MOST_LINES = 5000


class Question(ModalScreen[int | None]):
    """Asks which of several things to do; the answer is its place, None where it was called off."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,n", "dismiss_with_nothing", show=False)]

    def __init__(self, question: str, answers: Sequence[str]) -> None:
        """Each answer has its number as its key."""
        super().__init__()
        self.question, self.answers = question, answers

    def compose(self) -> ComposeResult:
        """The question, the answers, and how to call it off."""
        lines = [
            self.question,
            "",
            *(f" {number}  {text}" for number, text in enumerate(self.answers, start=1)),
        ]
        with Vertical(classes="dialog"):
            yield Static("\n".join([*lines, "", " Esc  do nothing"]), markup=False)

    def on_key(self, event: events.Key) -> None:
        """Take a number as the answer."""
        if event.key.isdecimal() and 1 <= int(event.key) <= len(self.answers):
            event.stop()
            self.dismiss(int(event.key) - 1)

    def action_dismiss_with_nothing(self) -> None:
        """Call it off."""
        self.dismiss(None)


class FilterLine(ModalScreen[str | None]):
    """Asks for the words of the filter; None where it was called off."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss_with_nothing", show=False)]

    def __init__(self, text: str) -> None:
        """Begin with the words that are there."""
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """One line to write in."""
        with Vertical(classes="dialog"):
            yield Static(
                "Show processes with all of these words (pid, user, job, pod, container, command):",
                markup=False,
            )
            yield Input(self._text, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take what was written."""
        self.dismiss(event.value.strip())

    def action_dismiss_with_nothing(self) -> None:
        """Call it off."""
        self.dismiss(None)


class Page(ModalScreen[None]):
    """A text that scrolls, until Esc."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", show=False)]

    def __init__(self, title: str, lines: Sequence[str] = ()) -> None:
        """Show the lines under the title."""
        super().__init__()
        self.title_text = title
        self._texts = list(lines)

    def compose(self) -> ComposeResult:
        """The text fills the screen."""
        yield Pane("page")

    def on_mount(self) -> None:
        """Show what is there."""
        self.query_one(Pane).focus()
        self.call_after_refresh(self.show_text)

    def on_resize(self) -> None:
        """Wrap anew."""
        self.call_after_refresh(self.show_text)

    def show_text(self) -> None:
        """Show the lines as they are now."""
        width = self.size.width
        heading = cut((Span(f"{self.title_text}  ", HEADING), Span("Esc closes", DIM)), width)
        rows = []
        for number, text in enumerate(self._texts[-_MOST_LINES:]):
            shown = escape_steering(text.expandtabs(4))
            parts = [shown] if len(shown) <= width else wrapped(shown, width=width) or [""]
            rows.append(Row(str(number), tuple(cut((Span(part, PLAIN),), width) for part in parts)))
        self.query_one(Pane).show(Table(heading, tuple(rows)))


class CommandOutput(Page):
    """The output of a command of gpudiag while it runs; it is ended when the page is closed."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """Run `gpudiag ARGUMENTS`."""
        super().__init__(f"gpudiag {' '.join(arguments)}", [])
        self._arguments = arguments
        self._program: Program | None = None
        self._reader: LoopReader | None = None
        self._rest = b""

    def on_mount(self) -> None:
        """Start it: tied to this process's life, and without a terminal."""
        super().on_mount()
        environment = with_import_path(os.environ) | {
            "NO_COLOR": "1",
            "COLUMNS": str(max(40, self.size.width)),
        }
        environment.pop("FORCE_COLOR", None)
        argv = [sys.executable, "-m", "gpudiag.service.supervised", str(os.getpid()), *self._arguments]
        try:
            self._program = Program(argv, environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except OSError as error:
            self._texts.append(f"the command cannot be started: {error.strerror}")
            return
        self._reader = LoopReader(self._program.output, self._take)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data:
            lines, self._rest = [self._rest] if self._rest else [], b""
        self._texts += [line.decode(errors="replace").rstrip("\r") for line in lines]
        if not data and self._program is not None:
            status = self._program.wait(1.0)
            self._texts += [
                "",
                f"(it has ended with exit status {status})" if status is not None else "(it has ended)",
            ]
        self.call_after_refresh(self.show_text)

    def on_unmount(self) -> None:
        """End it where it still runs."""
        if self._reader is not None:
            self._reader.stop()
        if self._program is not None:
            self._program.kill()
            self._program.wait(1.0)
            self._program.close_pipes()
