"""Jobs of several processes here, watched by a child (runs/node_watch.py): which stand still, and why.

Nothing here waits. A standstill is a finding until the job goes on or ends; where the child gives no answer,
that is reported, for a job that nobody looks at must not look well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from gpudiag.checks.job import kinds
from gpudiag.linux.loop_child import ChildProcess, SingleChild
from gpudiag.model.codec import decode
from gpudiag.model.evidence import Evidence, HostSubject
from gpudiag.model.finding import CheckResult, Finding, Outcome, outcome_of_findings, worst_first
from gpudiag.runs.node_watch import LIST_SECONDS

CHECK = "job.watch"
_CHILD = "gpudiag.runs.node_watch"
_SILENT_SECONDS = 2.5 * LIST_SECONDS
_AGAIN_SECONDS = 30.0  # between two children


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """A job that is watched."""

    name: str
    pid: int
    ranks: int  # on this machine
    step_seconds: float | None  # None where it has no rhythm, or none yet


class JobWatch(SingleChild):
    """The jobs that are watched, and those that stand still.

    `changed` is called when one begins or ends to do so.
    """

    def __init__(
        self,
        host: str,
        changed: Callable[[], None],
        note: Callable[[str, str], None],
        environment: Mapping[str, str],
    ) -> None:
        """Watch once `look` is called; `note` gets the message and severity of each entry of the timeline."""
        super().__init__()
        self.jobs: tuple[WatchedJob, ...] = ()
        self.warning: str | None = None
        self._host, self._changed, self._note, self._environment = host, changed, note, environment
        self._stalls: dict[str, tuple[str, Finding]] = {}  # the job's name, and what keeps it
        self._has_answer = False
        self._failure: str | None = None
        self._started_at = -_AGAIN_SECONDS

    def look(self) -> None:
        """Start the child where it is missing, replace one that is silent; call it about every second."""
        self.count_stuck()
        now = monotonic()
        if self._child is not None:
            if not self._child.ended and now - self._child.last_message_at < _SILENT_SECONDS:
                return
            self.close()
            self._stalls.clear()  # the next child finds them again
            self._fail("the process that watches jobs gave no answer, and is started again")
        if now - self._started_at > _AGAIN_SECONDS:
            self._started_at = now
            try:
                self._child = ChildProcess(_CHILD, (), self._receive, self._environment)
            except OSError as error:
                self._fail(f"the process that watches jobs cannot be started: {error.strerror or error}")

    def result(self) -> CheckResult:
        """What is known of this machine's jobs now."""
        if self._failure is not None:
            return CheckResult(CHECK, Outcome.ERROR, reason=f"jobs are not watched: {self._failure}")
        if not self._has_answer:
            return CheckResult(CHECK, Outcome.SKIP, reason="the jobs have not been listed yet")
        findings = worst_first(finding for _, finding in self._stalls.values())
        return CheckResult(CHECK, outcome_of_findings(findings), findings)

    def _receive(self, _child: ChildProcess, message: dict[str, Any]) -> None:
        if message["kind"] == "jobs":
            jobs = message["jobs"]
            self.jobs = tuple(
                WatchedJob(one["name"], one["pid"], one["ranks"], one["step_seconds"]) for one in jobs
            )
            hidden = message["hidden"]
            self.warning = (
                (
                    f"{hidden} Python processes of other users may not be looked into:"
                    " jobs among them are not watched"
                )
                if hidden
                else None
            )
            if self._failure is not None or not self._has_answer:
                self._failure, self._has_answer = None, True
                self._changed()
        elif message["kind"] == "stall":
            finding = self._finding(message)
            self._stalls[message["key"]] = (message["name"], finding)
            self._note(f"{message['name']} stands still: {finding.message}", "fail")
            self._changed()
        elif message["kind"] == "over":
            name, _ = self._stalls.pop(message["key"], ("a job", None))
            self._note(f"{name} no longer stands still: {message['why']}", "pass")
            self._changed()
        else:
            self._fail(message["reason"])

    def _fail(self, reason: str) -> None:
        if self._failure != reason:
            self._failure = reason
            self._changed()

    def _finding(self, message: Mapping[str, Any]) -> Finding:
        """The look's own finding with the job it is of.

        Where the ranks could not be read, it is that they stand still.
        """
        job = f"{message['name']} (pid {message['pid']})"
        stood = Evidence(
            "stands_still", message["stood_seconds"], "s", message["limit_seconds"], "gpudiag serve"
        )
        proof = (Evidence("job", job, source="/proc"), stood)
        if message["finding"] is None:
            words = (
                f"no rank moved for {message['stood_seconds']:.0f} s, and why could"
                f" not be read: {message['why']}"
            )
            return kinds.UNKNOWN.finding(HostSubject(self._host), f"{job}: {words}", *proof)
        found = decode(Finding, message["finding"])
        return replace(found, message=f"{job}: {found.message}", evidence=(*proof, *found.evidence))
