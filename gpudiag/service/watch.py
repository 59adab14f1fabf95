"""The watched machine: the sampler's readings and the host's state, judged and published every tick.

It runs in one event loop and queries nothing itself: the sampler's child queries NVML, the inspector's
the host. Whatever those do, `live` has the age of the numbers.
"""

import asyncio
import math
import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from gpudiag.checks.builtin import BUILTIN
from gpudiag.checks.gpu.gone import known_gpus_of
from gpudiag.checks.gpu.holders import memory_free
from gpudiag.checks.registry import Level
from gpudiag.checks.runner import findings_worst_first, run_checks, verdict
from gpudiag.compat import UTC
from gpudiag.model.context import Context
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.host_activity import HostActivity
from gpudiag.model.kernel_log import KernelEvent, KernelEventKind
from gpudiag.model.owners import GpuOwners
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.report import Report
from gpudiag.model.service import ActiveRun, Findings, LastGood, Live, TimelineEntry, TimelineKind
from gpudiag.probe.inventory import join_answers
from gpudiag.probe.nvml.answer import NvmlAnswer, nvml_answer_of
from gpudiag.probe.start import SIMULATED, host_root
from gpudiag.render.joined_findings import join_findings
from gpudiag.sampler.host_activity import HostActivityReader
from gpudiag.sampler.picture import NvmlPicture
from gpudiag.sampler.pod_watch import PodWatch
from gpudiag.sampler.supervisor import Inspector, Supervisor, Surroundings, Trouble, unknown_surroundings
from gpudiag.sampler.tiers import FAST_SECONDS, SLOW_SECONDS
from gpudiag.service.live import Changes, SamplerFacts, build_live, key_of, last_good_of
from gpudiag.service.owners import add_owners, find_owners
from gpudiag.service.readings import Readings
from gpudiag.service.seen_gpus import SeenGpus
from gpudiag.store.baselines import GoodState
from gpudiag.store.history import machine_key
from gpudiag.store.seen_gpus import SeenFile, SeenMachine

if TYPE_CHECKING:
    from gpudiag.service.job_watch import JobWatch

Update = Live | Findings | TimelineEntry

# `memory.free` is for a job that is about to start; at a node that trains, it would warn all the time.
INSTANT_CHECKS = tuple(
    check for check in BUILTIN if check.level is Level.INSTANT and check is not memory_free
)
_HOUSEKEEPING_SECONDS = 0.5
# After these changes the kernel log and the PCI bus are read again.
_CONCERNS_HOST = (
    TimelineKind.XID,
    TimelineKind.GPU_LOST,
    TimelineKind.GPU_SILENT,
    TimelineKind.GPU_BACK,
    TimelineKind.DRIVER,
)
# After these changes other sources must be queried again before they are compared with NVML.
_OTHER_GPUS = (TimelineKind.GPU_LOST, TimelineKind.GPU_BACK, TimelineKind.DRIVER)
_XID_EVENTS = 1000  # kept for the checks; more of them add nothing
_LOOKED_SECONDS = 20.0  # this long after the last API request, sampling slows down
_EARLIER_SECONDS = 60.0  # counters are compared with what they were about a minute ago
_MACHINE_SECONDS = 3.0  # without the host's answer by then, the GPUs are shown without it
_SETTLE_SECONDS = 10.0  # for the host's answer after NVML's list of GPUs has changed: is it still on the bus?
_REAP_SECONDS = 1.0  # for killed children at the end; the kernel takes milliseconds, or very long
_REAP_LOOK_SECONDS = 0.005
_SAVE_SECONDS = 600.0  # between two writes of the GPUs that were seen, where only their times have changed
_SAVE_AGAIN_SECONDS = 10.0  # between two tries to write what a full disk has refused
_SHORTEST_MEAN = 0.8  # of the time between two ticks
_SILENT_SECONDS = 2.0  # without a tick beyond the pace, the sampler is wedged


class MachineWatch:
    """One machine, watched; `announce` gets each tick, each change of the findings, each event."""

    def __init__(
        self,
        announce: Callable[[Update], None],
        readings: Readings,
        good_state: GoodState,
        environment: Mapping[str, str] | None = None,
        *,
        polls: bool = True,
        seen_file: SeenFile | None = None,
        kubelet_socket: str | None = None,
        watches_jobs: bool = False,
        looked_seconds: float = FAST_SECONDS,
        asks_others: bool = True,
    ) -> None:
        """Watch once `run` is called; with `polls` False, never query NVML.

        `looked_seconds`: how far apart samples are while somebody looks; without `asks_others` neither GPUtil
        nor torch is asked. `seen_file` has the GPUs that earlier services saw, `kubelet_socket` names the
        pods; with `watches_jobs` the machine's jobs are watched, too.
        """
        self.readings = readings
        self.snapshot: Snapshot | None = None
        self.report: Report | None = None
        self.findings: Findings | None = None
        self.live: Live | None = None
        self.started_at = datetime.now(UTC)
        self.active_runs: tuple[ActiveRun, ...] = ()
        self.good_state = good_state
        self.viewers = 0
        self._environment = os.environ if environment is None else environment
        self._announce = announce
        self._polls = polls
        self._paused_by: set[str] = set()
        self._looked_seconds = looked_seconds
        self._host_reader = HostActivityReader(host_root(self._environment))
        self._host: tuple[float, Reading[HostActivity]] = (-math.inf, NOT_ASKED)
        self._picture = NvmlPicture()
        self._supervisor = Supervisor(self._receive, self._trouble, environment)
        self._inspector = Inspector(self._add_surroundings, environment, asks_others=asks_others)
        self.owners: dict[str, GpuOwners] = {}  # who has which GPU, by UUID
        self._pods = PodWatch(kubelet_socket, self._environment)
        self._changes = Changes(self._note)
        self._jobs = self._watch_jobs() if watches_jobs else None
        self.seen = SeenGpus()
        self.remembered_at: datetime | None = None  # when an earlier service saw a GPU last
        self._seen_file = seen_file
        self._saved: tuple[float, object] = (-_SAVE_SECONDS, None)
        # Index, code, time, the GPU's UUID, and the sampler's generation.
        self._new_xids: list[tuple[int, int, float, str | None, int]] = []
        self._xid_events: deque[KernelEvent] = deque(maxlen=_XID_EVENTS)
        self._last_good: dict[str, LastGood] = {}
        self._earlier: deque[tuple[float, Snapshot]] = deque()
        self._looked_at = self._began = monotonic()
        self._announced_at = self._received_at = 0.0
        self._lost_since: float | None = None
        self._moved_at: float | None = None  # when NVML's list changed, until the host was looked at since
        self._sequence = 0
        self._facts: SamplerFacts | None = None
        self._next_tick: asyncio.Future[None] | None = None  # that somebody waits for

    def _watch_jobs(self) -> "JobWatch":
        from gpudiag.service.job_watch import JobWatch  # all that reads a job comes with it, 3 MiB

        return JobWatch(os.uname().nodename, self._take_jobs, self._note_job, self._environment)

    async def run(self) -> None:
        """Watch until cancelled."""
        task = asyncio.create_task(self._supervisor.run()) if self._polls else None
        try:
            while True:
                self._keep_house()
                await asyncio.sleep(_HOUSEKEEPING_SECONDS)
                if task is not None and task.done():
                    task.result()  # a supervisor that ended did so by an exception
        finally:
            if task is not None:
                task.cancel()
            self._save_seen(now=True)
            self._supervisor.close()
            self._inspector.close()
            self._pods.close()
            if self._jobs is not None:
                self._jobs.close()
            await self._wait_for_ends()

    async def _wait_for_ends(self) -> None:
        """Reap the killed children, but do not wait for one that is stuck in the driver."""
        until = monotonic() + _REAP_SECONDS
        while monotonic() < until:
            parts = (self._supervisor, self._inspector, self._pods, self._jobs)
            if sum(part.count_stuck() for part in parts if part is not None) == 0:
                return
            await asyncio.sleep(_REAP_LOOK_SECONDS)

    def note_look(self) -> None:
        """Note that a client reads the numbers: sample at full rate for a while."""
        self._looked_at = monotonic()
        self._set_pace()

    async def freshen(self, seconds: float) -> None:
        """Return once there are numbers of this second, or after `seconds`: a scraper does not stay to look.

        So the pace stays, and the GPUs are read once, out of turn.
        """
        age_seconds = self.age_seconds
        is_able = self._polls and not self._paused_by and not self._picture.is_hanging()
        if not is_able or age_seconds is None or age_seconds <= FAST_SECONDS:
            return
        if self._next_tick is None or self._next_tick.done():
            self._next_tick = asyncio.get_running_loop().create_future()
            self._supervisor.read_now()
        await asyncio.wait((self._next_tick,), timeout=seconds)

    def pause(self, holder: str) -> None:
        """Stop sampling until `resume`: a bandwidth test must not be disturbed."""
        self._paused_by.add(holder)
        self._set_pace()

    def resume(self, holder: str) -> None:
        """Sample again, once no other holder wants the pause."""
        self._paused_by.discard(holder)
        self._received_at = monotonic()
        self._set_pace()

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the last tick; None before the first."""
        return self._picture.age_seconds()

    @property
    def restarts(self) -> int:
        """How many times the sampler's child ended or was given up."""
        return self._supervisor.restarts

    @property
    def stuck(self) -> int:
        """The number of killed children that the kernel cannot end yet."""
        return self._supervisor.stuck

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why pods are not named, or jobs not watched, where they should be."""
        return tuple(
            filter(None, (self._pods.warning, self._jobs.warning if self._jobs is not None else None))
        )

    @property
    def interval_seconds(self) -> float:
        """Seconds between samples now."""
        looked = self.viewers > 0 or monotonic() - self._looked_at < _LOOKED_SECONDS
        return self._looked_seconds if looked else max(SLOW_SECONDS, self._looked_seconds)

    def _set_pace(self) -> None:
        self._supervisor.set_pace(self.interval_seconds, paused=bool(self._paused_by))

    def _receive(self, message: dict[str, Any]) -> None:
        self._received_at = monotonic()
        changed = self._picture.add(message)
        xids = message.get("xids", ())
        self._new_xids += [(*xid, self._supervisor.generation) for xid in xids]
        if changed or xids or self.snapshot is None:
            self._join()
        elif message["kind"] == "tick":
            self._refresh()
        if message["kind"] == "gone":  # the driver, or its list of GPUs, is another one
            self._moved_at = monotonic()
            self._inspector.ask_at_once()
        elif message["kind"] == "failed" and changed:
            self._inspector.ask_soon()
        if message["kind"] == "tick":
            self._remember(message["at"])
        if message["kind"] != "starting" or changed:
            self._publish()
        if message["kind"] == "tick" and self._next_tick is not None and not self._next_tick.done():
            self._next_tick.set_result(None)

    def _add_surroundings(self, surroundings: Surroundings) -> None:
        if self._moved_at is not None and surroundings.began_at >= self._moved_at:
            self._moved_at = None
        self._join()
        self._publish()

    def _take_jobs(self) -> None:
        """Judge again: a job stands still, continues, or is no longer watched."""
        self._join()
        self._publish()

    def _note_job(self, message: str, severity: str) -> None:
        self._changes.note_job(message, severity, time())

    def _trouble(self) -> Trouble:
        waited = list(self._picture.wedged().values())
        if self._picture.starting is not None:
            waited.append(monotonic() - self._picture.starting[1])
        if self._picture.lost():
            self._lost_since = self._lost_since or monotonic()
        else:
            self._lost_since = None
        lost_for = None if self._lost_since is None else monotonic() - self._lost_since
        return Trouble(max(waited, default=0.0), lost_for)

    def _join(self) -> None:
        """Rebuild the whole snapshot, and run the checks on it."""
        surroundings, picture = self._inspector.surroundings, self._picture
        unanswered = self._polls and not picture.has_answer()
        if (surroundings is None or unanswered) and monotonic() - self._began < _MACHINE_SECONDS:
            return  # a first snapshot without it would be a false alarm
        if self.snapshot is not None and (self._picture.is_filling() or self._is_settling()):
            # a fresh child has not read the GPUs yet, nor the host its bus: what was read last still stands
            return
        if surroundings is None:
            surroundings = unknown_surroundings(self._environment, datetime.now(UTC))
        answers = surroundings.answers(self._nvml_answer())
        simulated = self._environment.get(SIMULATED) or None
        joined = join_answers(answers, surroundings.uuids, simulated, datetime.now(UTC))
        self._recall(joined)
        snapshot = self.seen.recognise(joined)
        self.seen.note(snapshot)
        self.seen.note_good(self.good_state.baseline, snapshot)
        shown = replace(snapshot, devices=(*snapshot.devices, *self.seen.rows_of_missing(snapshot)))
        self._changes.compare(shown)
        self.snapshot = shown
        self._note_last_good()  # the first picture may come after the only tick that there is
        self._publish_xids()
        self._judge(joined)

    def _is_settling(self) -> bool:
        """Whether NVML's list has just changed, and what is known of the PCI bus is from before that."""
        return self._moved_at is not None and monotonic() - self._moved_at < _SETTLE_SECONDS

    def _recall(self, snapshot: Snapshot) -> None:
        """Take in what an earlier service saw, once the disk has given it."""
        memory = self._memory_to_recall()
        if self._seen_file is not None and memory is not None:
            self._seen_file.loaded = None
            self.remembered_at = memory.last_at
            self.seen.recall(memory, snapshot)

    def _memory_to_recall(self) -> SeenMachine | None:
        """What an earlier service saw.

        It is None until the host id is known, as the GPUs may be another machine's.
        """
        if self._seen_file is None or self._inspector.surroundings is None:
            return None
        return self._seen_file.loaded

    def _save_seen(self, *, now: bool = False) -> None:
        """Have the GPUs that were seen written where they have changed, and their times now and then."""
        memory = self.seen.memory()
        if self._seen_file is None or not self._seen_file.is_read or self._seen_file.loaded or memory is None:
            return
        which = [(gpu.uuid, gpu.nvml_index, gpu.bus_id) for gpu in memory.known.gpus]
        saved_at, before = self._saved
        period = _SAVE_AGAIN_SECONDS if self._seen_file.warning else _SAVE_SECONDS
        if now or which != before or monotonic() - saved_at > period:
            self._saved = (monotonic(), which)
            self._seen_file.save(memory)

    def _publish_xids(self) -> None:
        """Put Xids from NVML's events on the timeline, now that each GPU is known."""
        xids, self._new_xids = self._new_xids, []
        for index, code, at, uuid, generation in xids:
            self._changes.note_xid(self.snapshot, index, code, at, generation, uuid)

    def _asks_nvml(self) -> bool:
        """Whether NVML is, or has been, queried, so that its silence would be the driver's."""
        return self._polls and (self._picture.has_answer() or self._supervisor.cannot_start is None)

    def _nvml_answer(self) -> NvmlAnswer:
        if self._asks_nvml():
            return self._picture.answer()
        answer = nvml_answer_of(None)
        if not self._polls:
            return answer
        return replace(answer, status=replace(answer.status, reason=self._supervisor.cannot_start))

    def _judge(self, snapshot: Snapshot) -> None:
        now = monotonic()
        while len(self._earlier) > 1 and now - self._earlier[1][0] >= _EARLIER_SECONDS:
            self._earlier.popleft()
        earlier = self._earlier[0][1] if self._earlier else NOT_ASKED
        if not self._earlier or now - self._earlier[-1][0] >= SLOW_SECONDS:
            self._earlier.append((now, snapshot))
        good = self.good_state.baseline
        known = good if isinstance(good, Missing) else known_gpus_of(good)
        if not isinstance(snapshot.driver_version, Missing):  # else the driver is what is missing
            known = self.seen.known(known)
        context = Context(
            snapshot, earlier=earlier, baseline=good, known_gpus=known, xid_events=tuple(self._xid_events)
        )
        results = run_checks(context, INSTANT_CHECKS)
        if self._jobs is not None:
            results = (*results, self._jobs.result())
        outcome = verdict(results)
        if not self._asks_nvml() and outcome in (Outcome.PASS, Outcome.WARN):
            outcome = Outcome.ERROR  # the host may be well; of the GPUs nothing was seen
        self.report = Report(outcome, results, snapshot)
        findings = tuple(
            finding for finding in findings_worst_first(results) if finding.outcome is not Outcome.PASS
        )
        before = self.findings
        if before is not None and before.verdict == outcome.value and _same(before.findings, findings):
            self.findings = replace(before, findings=findings, joined=join_findings(findings))
            return
        version = 1 if before is None else before.version + 1
        self.findings = Findings(version, outcome.value, snapshot.taken_at, findings, join_findings(findings))
        self._announce(self.findings)

    def _refresh(self) -> None:
        """Update the snapshot with the newest fast readings."""
        assert self.snapshot is not None  # noqa: S101 - the caller has looked
        devices = tuple(self._picture.with_fast(device) for device in self.snapshot.devices)
        snapshot = replace(self.snapshot, devices=devices, taken_at=datetime.now(UTC))
        self._changes.compare(snapshot)
        self.snapshot = snapshot

    def _remember(self, at: float) -> None:
        if self._is_settling():
            return  # what is shown is of the list before
        self._note_last_good()
        for device in self.snapshot.devices if self.snapshot is not None else ():
            if device.responding is True:
                self.readings.add(device, at)

    def _note_last_good(self) -> None:
        """Keep the last good readings of each GPU, in case it or the sampler falls silent."""
        if self.snapshot is None or self._picture.tick_at is None:
            return
        at = datetime.fromtimestamp(self._picture.tick_at, UTC)
        for device in self.snapshot.devices:
            last_good = last_good_of(device, at) if device.responding is True else None
            if last_good is not None:
                self._last_good[key_of(device)] = last_good

    def _keep_house(self) -> None:
        self._set_pace()
        self._inspector.look(driver_hangs=self._picture.is_hanging() or self._picture.is_asleep())
        self._pods.look()
        if self._jobs is not None:
            self._jobs.look()
        self.readings.keep_house()
        if self.snapshot is not None:
            self.good_state.look(machine_key(self.snapshot))
        now = monotonic()
        if self._moved_at is not None and not self._is_settling():
            self._moved_at = None
            self._join()
        lateness_changed = self._polls and bool(self._picture.late()) != self._shows_late()
        if self.snapshot is None or self._memory_to_recall() is not None or lateness_changed:
            self._join()
        self._save_seen()
        if now - self._announced_at > max(1.0, self.interval_seconds) + _HOUSEKEEPING_SECONDS:
            self._publish()

    def _shows_late(self) -> bool:
        """Whether the snapshot has a GPU that is late."""
        return any(_is_late(device) for device in self.snapshot.devices) if self.snapshot else False

    def _publish(self) -> None:
        if self.snapshot is None:
            return
        self._announced_at = monotonic()
        self._sequence += 1
        self._facts = SamplerFacts(
            polls=self._polls,
            paused=bool(self._paused_by),
            silent_seconds=self._silence(),
            interval_seconds=self.interval_seconds,
            restarts=self._supervisor.restarts,
            stuck=self._supervisor.stuck,
            cannot_start=self._supervisor.cannot_start,
            since=None if self.live is None else (self.live.sampler.state, self.live.sampler.since),
        )
        before = self.live
        self.live = build_live(
            self.snapshot,
            self._picture,
            self._facts,
            self.findings,
            self._last_good,
            self._sequence,
            self.seen.last_seen(),
        )
        since = (
            before.verdict_since
            if before is not None and before.verdict == self.live.verdict
            else self.live.at
        )
        self.owners = find_owners(self.snapshot, self._pods.pods)
        self.live = replace(
            add_owners(self.live, self.owners),
            active_runs=self.active_runs,
            host_activity=self._host_activity(),
            verdict_since=None if self.live.verdict is None else since,
        )
        self._changes.note_sampler(self.live.sampler)
        self._announce(self.live)

    def _host_activity(self) -> Reading[HostActivity]:
        """What the host does, read anew once a tick: means over less would be noise."""
        now = monotonic()
        if now - self._host[0] > _SHORTEST_MEAN * self.interval_seconds:
            self._host = (now, self._host_reader.read(now))
        return self._host[1]

    def _silence(self) -> float | None:
        """Seconds that the child has been silent beyond its interval; None while it reports."""
        if (
            not self._polls
            or self._paused_by
            or self._received_at == 0.0
            or self._picture.failure is not None
        ):
            return None
        silence = monotonic() - self._received_at
        return silence if silence > self.interval_seconds + _SILENT_SECONDS else None

    def _note(self, entry: TimelineEntry) -> None:
        if entry.kind in _CONCERNS_HOST:
            self._inspector.ask_soon()
        if entry.kind in _OTHER_GPUS:
            self._inspector.ask_others_anew()
        if entry.kind is TimelineKind.XID:
            self._xid_events.append(
                KernelEvent(KernelEventKind.XID, entry.at, "", gpu_uuid=entry.uuid, xid_code=entry.xid_code)
            )
        self.readings.note(entry)
        self._announce(entry)

    def note_run(self, message: str, severity: str) -> None:
        """Put a run's start or end on the timeline; its end may bring a new good state."""
        self.good_state.ask_soon()
        self._changes.note_run(message, severity, time())


def _is_late(device: Device) -> bool:
    responding = device.responding
    return isinstance(responding, Missing) and responding.reason is MissingReason.TIMED_OUT


def _same(before: tuple[Finding, ...], after: tuple[Finding, ...]) -> bool:
    """Whether both have the same faults of the same parts; numbers in the text may differ."""
    return [(one.code, one.subject) for one in before] == [(one.code, one.subject) for one in after]
