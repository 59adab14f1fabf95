"""The application: keys and mouse change the choice, news the frames, and either draws the picture anew."""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType

from gpudiag.model.reading import Missing, value_or
from gpudiag.reference.reading_names import describe_missing
from gpudiag.watch.choice import Choice
from gpudiag.watch.compose import chosen_frame, compose, share_lines
from gpudiag.watch.feed import Feed
from gpudiag.watch.finding_table import find_joined
from gpudiag.watch.frame import Frame, key_of_row
from gpudiag.watch.glyphs import Glyphs
from gpudiag.watch.process_table import Use, child_of, find_use
from gpudiag.watch.screen.dialogs import CommandOutput, FilterLine, Page, Question
from gpudiag.watch.screen.pane import Lines, Pane
from gpudiag.watch.signals import SIGNALS, send_signal

_HOSTS, _GPUS, _FINDINGS, _PROCESSES = "hosts", "gpus", "findings", "processes"
_PANES = (_HOSTS, _GPUS, _FINDINGS, _PROCESSES)
# The least that a part gets of a small window before another gets all that it wants: with its heading.
_LEAST = {_HOSTS: 3, _GPUS: 4, _FINDINGS: 2, _PROCESSES: 3}
_MOST_OF_HOSTS, _MOST_OF_FINDINGS = 14, 12
_DRAW_SECONDS = 0.1  # news that come together are drawn once
_AGE_SECONDS = 2.0  # ages grow also where no news come
_SEEK_SECONDS = 10.0
_SHOWN_OF_PROCESS = (
    "user",
    "kind",
    "started_at",
    "state",
    "memory_used_bytes",
    "resident_bytes",
    "sm_utilization_percent",
    "processor_percent",
    "gpu_instance_id",
    "container_id",
    "slurm_job_id",
)
_TESTS = (
    (
        ("preflight", "--level", "instant"),
        "preflight --level instant: all readings, under 2 s, disturbs nobody",
    ),
    (
        ("preflight", "--level", "quick"),
        "preflight --level quick: short tests on the GPUs that nobody uses, 45 s and more",
    ),
    (("bandwidth",), "bandwidth: copies and matrix products on the GPUs that nobody uses, minutes"),
    (("doctor",), "doctor: what of gpudiag works here"),
)
HELP = """\
Tab, Shift-Tab   the next part: machines, GPUs, findings, processes
Up Down PgUp PgDn Home End, wheel   move
Enter            on a machine: show it; on a GPU: only its processes, and again all of them; \
on a finding: explain it
e                explain the finding under the cursor, or the first one of the GPU under it
h                why the job of the process under the cursor stands still: gpudiag hang PID
x                run a test on this machine: it asks which
k                send a signal to the process under the cursor: it asks which
/                show only processes with these words; Esc in the line leaves it as it was
s, S             sort processes by the next column; the other way round. A click on a heading does both
t                processes as a tree with what started them, or as a list
c                another reading in the chart of the GPUs
Space            stop the picture, and continue
Left Right       in a replay: 10 s back, on;  < and > slower, faster
q, Ctrl-C        quit"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How the view ended: by the user's `q`, or by a signal (Ctrl-C counts as one)."""

    by: signal.Signals | None = None


class WatchApp(App[Ended]):
    """`gpudiag watch`."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; overflow: hidden; }
    ModalScreen { background: ansi_default 0%; align: center middle; }
    Lines, Pane { height: 1; width: 100%; background: ansi_default; }
    #page { height: 100%; }
    .dialog {
        width: auto; max-width: 96%; height: auto; padding: 0 1;
        border: ascii ansi_cyan; background: ansi_default;
    }
    .dialog Static { width: auto; max-width: 100%; background: ansi_default; color: ansi_default; }
    .dialog Input {
        width: 60; max-width: 100%; border: none; height: 1; padding: 0;
        background: ansi_default; color: ansi_default;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave", show=False),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False),
        Binding("question_mark,f1", "help", show=False),
        Binding("slash", "filter", show=False),
        Binding("s", "sort", show=False),
        Binding("S,upper_s", "reverse", show=False),
        Binding("t", "tree", show=False),
        Binding("c", "chart", show=False),
        Binding("space", "pause", show=False),
        Binding("e", "explain", show=False),
        Binding("h", "hang", show=False),
        Binding("x", "test", show=False),
        Binding("k", "signal", show=False),
        Binding("left", "seek(-1)", show=False),
        Binding("right", "seek(1)", show=False),
        Binding("less_than_sign", "speed(0)", show=False),
        Binding("greater_than_sign", "speed(1)", show=False),
    ]

    def __init__(self, feed: Feed, glyphs: Glyphs, clock: Callable[[], float] = time.time) -> None:
        """Draw what the feed gives."""
        super().__init__(ansi_color=True)
        self.feed = feed
        self.choice = Choice()
        self.failure: BaseException | None = None
        self._glyphs = glyphs
        self._now = clock
        self._frames: Sequence[Frame] = feed.frames
        self._is_due = False
        self._drawn_at = 0.0
        self._heights: tuple[int, ...] = ()

    def compose(self) -> ComposeResult:
        """The parts, from above."""
        yield Lines("header")
        for name in _PANES:
            yield Pane(name)
        yield Lines("footer")

    async def on_mount(self) -> None:
        """Begin to gather, and draw what is there."""
        self.query_one(f"#{_GPUS}").focus()
        self._feeding = asyncio.create_task(self.feed.run(self._note_news))
        self._feeding.add_done_callback(self._end_by_failure)
        self.set_interval(_AGE_SECONDS, self._age)
        self.draw()

    async def stop_feed(self) -> None:
        """End what gathers; its processes are gone afterwards."""
        feeding = getattr(self, "_feeding", None)
        if feeding is not None:
            feeding.remove_done_callback(self._end_by_failure)
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    def _end_by_failure(self, feeding: "asyncio.Task[None]") -> None:
        if not feeding.cancelled():
            self.failure = feeding.exception()
            self.exit(Ended())

    def _handle_exception(self, error: Exception) -> None:
        """Leave the terminal as it was, and let the command line report the bug."""
        self.failure = self.failure or error
        self._exception = self._exception or error  # what `run_test` raises
        self._return_code = 1
        self._close_messages_no_wait()

    # --- drawing

    def _note_news(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.set_timer(_DRAW_SECONDS, self._draw_news)

    def _draw_news(self) -> None:
        self._is_due = False
        if not self.choice.is_paused:
            self._frames = self.feed.frames
            self.draw()

    def _age(self) -> None:
        if time.monotonic() - self._drawn_at > 2 * _AGE_SECONDS:
            self._draw_news()

    def draw(self) -> None:
        """Draw the picture of the newest frames and the present choice."""
        if not self.is_running or not self._screen_stack:
            return
        self._drawn_at = time.monotonic()
        root = self.screen_stack[0]
        choice = replace(self.choice, note=self.feed.note, finding=root.query_one(f"#{_FINDINGS}", Pane).key)
        view = compose(self._frames, choice, self.size.width, self._glyphs, self._now())
        tables = (view.hosts, view.gpus, view.findings, view.processes)
        panes = [root.query_one(f"#{name}", Pane) for name in _PANES]
        for pane, table in zip(panes, tables, strict=True):
            pane.display = table is not None
            if table is not None:
                pane.show(table)
        self._place(len(view.header), panes)
        root.query_one("#header", Lines).show(view.header)
        root.query_one("#footer", Lines).show((view.footer,))

    def _place(self, header: int, panes: Sequence[Pane]) -> None:
        """Give each part its height, where that has changed."""
        height = self.size.height
        header = min(header, max(1, height - 6))
        limits = {_HOSTS: _MOST_OF_HOSTS, _FINDINGS: _MOST_OF_FINDINGS}
        shown = [pane for pane in panes if pane.display]
        wanted = [min(pane.wanted_lines, limits.get(str(pane.id), height)) for pane in shown]
        least = [_LEAST[str(pane.id)] for pane in shown]
        lines = share_lines(height - header - 1, wanted, least, len(shown) - 1)
        if (header, *lines) != self._heights:
            self._heights = (header, *lines)
            self.screen_stack[0].query_one("#header").styles.height = header
            for pane, count in zip(shown, lines, strict=True):
                pane.styles.height = count

    def on_resize(self, _event: events.Resize) -> None:
        """Draw for the new size."""
        self._heights = ()
        self.call_after_refresh(self.draw)

    # --- keys and the mouse

    def choose(self, choice: Choice) -> None:
        """Draw by another choice."""
        self.choice = choice
        self.draw()

    def action_leave(self) -> None:
        """Quit."""
        self.exit(Ended())

    def action_interrupt(self) -> None:
        """Quit as by SIGINT."""
        self.exit(Ended(signal.SIGINT))

    async def action_quit(self) -> None:
        """Textual's own key for quitting."""
        self.exit(Ended())

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Page("Keys of gpudiag watch", HELP.splitlines()))

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.choose(self.choice.with_next_sort())

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self.choose(replace(self.choice, is_reversed=not self.choice.is_reversed))

    def action_tree(self) -> None:
        """Show processes as a tree, or as a list."""
        self.choose(replace(self.choice, is_tree=not self.choice.is_tree))

    def action_chart(self) -> None:
        """Show another reading in the chart."""
        self.choose(self.choice.with_next_chart())

    def action_pause(self) -> None:
        """Stop the picture, or go on."""
        is_paused = not self.choice.is_paused
        self.feed.hold(is_held=is_paused)
        self.choose(replace(self.choice, is_paused=is_paused))
        if not is_paused:
            self._draw_news()

    def action_seek(self, steps: int) -> None:
        """Go on or back in a replay."""
        self.feed.seek(steps * _SEEK_SECONDS)
        self._frames = self.feed.frames
        self.draw()

    def action_speed(self, faster: int) -> None:
        """Replay faster or slower."""
        change = getattr(self.feed, "change_speed", None)
        if change is not None:
            change(faster=bool(faster))
            self.draw()

    def action_filter(self) -> None:
        """Ask for the words of the filter."""

        def take(words: str | None) -> None:
            if words is not None:
                self.choose(replace(self.choice, filter=words))

        self.push_screen(FilterLine(self.choice.filter), take)

    def on_pane_moved(self, message: Pane.Moved) -> None:
        """Show the finding under the cursor whole."""
        if message.pane.id == _FINDINGS:
            self.draw()

    def on_pane_headed(self, message: Pane.Headed) -> None:
        """Sort by the heading that was clicked."""
        self.choose(self.choice.with_sort(message.sort))

    def on_pane_chosen(self, message: Pane.Chosen) -> None:
        """Enter on a row: what it does depends on the part."""
        if message.pane.id == _HOSTS:
            self.choose(replace(self.choice, host=message.key, gpu=None))
        elif message.pane.id == _FINDINGS:
            self.action_explain()
        elif message.pane.id == _GPUS:
            label = self._label_of(message.key)
            self.choose(replace(self.choice, gpu=None if self.choice.gpu == label else label))
        elif message.pane.id == _PROCESSES:
            self._show_use()

    # --- what is under the cursor

    @property
    def frame(self) -> Frame:
        """The machine that is shown."""
        return chosen_frame(self._frames, self.choice)

    def _key_in(self, name: str) -> str:
        return self.screen_stack[0].query_one(f"#{name}", Pane).key or ""

    def _label_of(self, key: str) -> str | None:
        rows = () if self.frame.live is None else self.frame.live.devices
        return next((str(row.id.nvml_index) for row in rows if key_of_row(row) == key), None)

    def _use(self) -> Use | None:
        return find_use(self.frame, self._key_in(_PROCESSES), self._now())

    def _notice(self, text: str) -> None:
        self.push_screen(Page(text))

    def _why_not_here(self, command: str) -> str | None:
        """Why nothing can be done to the machine from here; None where it is this one."""
        frame = self.frame
        if not frame.is_here:
            return f"{frame.name} is another machine, or a recording: run `{command}` there"
        return None

    def action_explain(self) -> None:
        """Explain the finding under the cursor, or the first of the GPU under it."""
        pane = self.screen_stack[0].focused
        code = None
        if pane is not None and pane.id == _GPUS:
            rows = () if self.frame.live is None else self.frame.live.devices
            codes = (row.finding_codes for row in rows if key_of_row(row) == self._key_in(_GPUS))
            code = next((found[0] for found in codes if found), None)
        else:
            joined = find_joined(self.frame.findings, self._key_in(_FINDINGS))
            code = None if joined is None else joined.finding.code
        if code is None:
            self._notice("no finding is under the cursor")
        else:
            self.push_screen(CommandOutput(("explain", code)))

    def action_hang(self) -> None:
        """Look why the job of the process under the cursor stands still."""
        use = self._use()
        if use is None:
            self._notice("no process is under the cursor")
            return
        refusal = self._why_not_here(f"gpudiag hang {use.pid}")
        if refusal:
            self._notice(refusal)
        else:
            self.push_screen(CommandOutput(("hang", str(use.pid))))

    def action_test(self) -> None:
        """Ask for a test, and run it."""
        refusal = self._why_not_here("gpudiag preflight")
        if refusal:
            self._notice(refusal)
            return

        def run(place: int | None) -> None:
            if place is not None:
                self.push_screen(CommandOutput(_TESTS[place][0]))

        self.push_screen(Question("Run which test on this machine?", [words for _, words in _TESTS]), run)

    def action_signal(self) -> None:
        """Ask for a signal, and send it."""
        use = self._use()
        if use is None:
            self._notice("no process is under the cursor")
            return
        refusal = self._why_not_here(f"kill {use.pid}")
        if refusal is None and self.frame.live is not None and self.frame.live.simulated is not None:
            refusal = "the processes of a simulated machine do not exist: no signal can be sent"
        if refusal:
            self._notice(refusal)
            return
        numbers = tuple(SIGNALS)
        child = None if use.process is not None else child_of(self.frame, use.pid)

        def send(place: int | None) -> None:
            if place is not None:
                self._notice(send_signal(use.pid, numbers[place], use.process, child))

        answers = [f"{number.name:8} {words}" for number, words in SIGNALS.items()]
        self.push_screen(Question(f"Send a signal to pid {use.pid} ({use.command[:60]})?", answers), send)

    def _show_use(self) -> None:
        use = self._use()
        if use is not None:
            self.push_screen(Page(f"Process {use.pid}", describe_use(use)))


def describe_use(use: Use) -> list[str]:
    """All that is known of a process, in lines."""
    process = use.process
    lines = [use.command, ""]
    if process is None:
        return [*lines, "It has started processes that use GPUs, and uses none itself."]
    for name in _SHOWN_OF_PROCESS:
        value = getattr(process, name)
        shown = describe_missing(value) if isinstance(value, Missing) else value
        lines.append(f"{name.replace('_', ' '):24} {shown}")
    lines += [f"{'started by':24} {parent.pid}  {parent.command}" for parent in value_or(process.parents, ())]
    return lines
