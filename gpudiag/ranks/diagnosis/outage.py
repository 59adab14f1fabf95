"""Whether the network explains why ranks stand still: a lasting cut, lost large packets, an outage; pure.

TCP sends again after 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s (RFC 6298, Linux's minimum of 0.2 s), so that ranks go
on once as much time has passed as an outage took. A cut is certain after 10 s; what came back before is a
warning.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.diagnosis.paths import Paths, explain
from gpudiag.ranks.diagnosis.view import RankView
from gpudiag.ranks.stages import INIT, RENDEZVOUS

CUT_SECONDS = 10.0
# Beside the time that TCP needs to send again: for the ranks to go on.
_GOING_ON_SECONDS = 2.0
# An agent that was starved of the processor and replies now: how long until it is looked at again.
_EXCUSE_SECONDS = 1.0
# What is shorter may be one lost segment.
_OUTAGE_SECONDS = 1.0
_STILL_SECONDS = 2.0
# A look takes as long at most: what was silent within that time may be what it found cut.
_RECENT_SECONDS = 4.0
_KEPT = frozenset({"one_side", "other_side", "not_reached_by", "does_not_reach", "tried"})
_SOURCE = "connections between the agents' hosts"

_Ends = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Outage:
    """A cut that may heal: which hosts or pairs, as incidents, and since when."""

    cuts: tuple[Incident, ...]
    began: float
    healed_at: float | None = None

    @property
    def ends(self) -> _Ends:
        """What distinguishes it from another outage."""
        return tuple((one.host, str(one.facts.get("one_side", ""))) for one in self.cuts)


class Outages:
    """Judges looks at the network while ranks wait; keeps healed ones. Seconds since the start."""

    def __init__(self) -> None:
        """Start without an outage."""
        self._open: _Outage | None = None
        # By host: since when, and until when, nothing came from it, or none of its ranks moved.
        self._silent: dict[str, tuple[float, float]] = {}
        self._still: dict[str, tuple[float, float]] = {}
        self._excused_until = 0.0
        self._healed: dict[tuple[str, str], Incident] = {}

    @property
    def names(self) -> str | None:
        """What is cut now, and may heal, in words; None where nothing is."""
        if self._open is None or self._open.healed_at is not None:
            return None
        return "; ".join(_describe(cut) for cut in self._open.cuts)

    def is_excused(self, now: float) -> bool:
        """Whether what ranks wait for is explained: the network is cut, or was a moment ago."""
        return self.names is not None or now < self._excused_until

    def healed(self) -> tuple[Incident, ...]:
        """One incident for each host or pair whose link was lost and came back: how long, how often."""
        return tuple(sorted(self._healed.values(), key=lambda incident: incident.at_seconds))

    def has_end(self, host: str) -> bool:
        """Whether the link of that host, or one between it and another host, was away for a while."""
        return host in _hosts_of(self.healed())

    def observe(self, views: Sequence[RankView], now: float) -> None:
        """Keep since when a host is silent, or its ranks stand still: a look may end after that is over."""
        hosts: dict[str, list[RankView]] = {}
        for view in views:
            hosts.setdefault(view.host, []).append(view)
        for host, there in hosts.items():
            silent = max(view.silent_seconds for view in there)
            if silent:
                self._silent[host] = (now - silent, now)
            still = min(view.still_seconds for view in there)
            if still >= _OUTAGE_SECONDS:
                self._still[host] = (now - still, now)

    def close(self, now: float) -> None:
        """Note that no rank waits any more."""
        self._heal(now)
        self._open = None

    def judge(
        self,
        looks: Sequence[tuple[float, Paths]],
        certain: tuple[Incident, ...],
        waiting: tuple[Incident, ...],
        views: Sequence[RankView],
        now: float,
        *,
        at_the_end: bool = False,
    ) -> tuple[Incident, ...]:
        """The incidents that are certain, given when the last two looks began and what they found.

        `waiting`: those suspected, or certain; `certain` come back unless the network explains them.
        `at_the_end`: nothing is waited for.
        """
        if not looks:
            return certain if at_the_end else ()
        (began, last), before = looks[-1], (looks[-2][1] if len(looks) > 1 else None)
        again = before is not None and last.lasting_faults(before)
        if last.is_cut:
            self._add_cut(last, waiting, views, now)
            lasted = self._open is not None and now - self._open.began >= CUT_SECONDS
            is_over = again if _are_starting(views) else lasted
            return (explain(waiting, last) or certain) if waiting and (is_over or at_the_end) else ()
        if last.narrow_pairs():
            still = waiting or ((_stand_still(views, now),) if _stand_all_still(views) else ())
            return (explain(still, last) or certain) if still and (again or at_the_end) else ()
        if self.names is not None:
            self._heal(began)
        if now < self._excused_until and not at_the_end:
            return ()
        explained = explain(certain, last)
        if explained == ():
            self._excused_until = now + _EXCUSE_SECONDS
        return certain if explained is None else explained

    def _add_cut(
        self, paths: Paths, waiting: Sequence[Incident], views: Sequence[RankView], now: float
    ) -> None:
        first = waiting[0] if waiting else _stand_still(views, now)
        cuts = explain((first,), paths) or ()
        found = _Outage(cuts, self._began(cuts, paths, now))
        if self._open is not None and self._open.ends == found.ends and self._open.healed_at is None:
            found = replace(found, began=min(found.began, self._open.began))
        self._open = found

    def _began(self, cuts: Sequence[Incident], paths: Paths, now: float) -> float:
        """Since when nothing came from those cut off; of a pair of others, since when they stand still."""
        hosts = _hosts_of(cuts)
        if hosts == {paths.hosts[paths.own]}:
            hosts = set(paths.hosts.values()) - hosts
        for seen in (self._silent, self._still):
            recent = [seen[host] for host in hosts if host in seen and seen[host][1] >= now - _RECENT_SECONDS]
            if recent:
                return min(began for began, _ in recent)
        return now

    def _heal(self, at: float) -> None:
        """Note that what was cut is not any more."""
        if self._open is None or self._open.healed_at is not None:
            return
        # It sent again before the next look began.
        last = max(
            (self._silent.get(host, (0.0, 0.0))[1] for host in _hosts_of(self._open.cuts)), default=0.0
        )
        if last > self._open.began:
            at = min(at, last)
        lasted = at - self._open.began
        self._open = replace(self._open, healed_at=at)
        self._excused_until = max(self._excused_until, at + lasted + _GOING_ON_SECONDS)
        if lasted < _OUTAGE_SECONDS:
            return
        for cut, key in zip(self._open.cuts, self._open.ends, strict=True):
            earlier = self._healed.get(key)
            times = 1 if earlier is None else int(earlier.facts["times"]) + 1
            longest = max(lasted, 0.0 if earlier is None else float(earlier.facts["lasted"]))
            facts = (
                Evidence("lasted", round(longest, 1), unit="s", source=_SOURCE),
                Evidence("times", times, source=_SOURCE),
                *(fact for fact in cut.evidence if fact.name in _KEPT),
            )
            began = self._open.began if earlier is None else earlier.at_seconds
            self._healed[key] = replace(cut, kind=IncidentKind.OUTAGE, at_seconds=began, evidence=facts)


def _are_starting(views: Sequence[RankView]) -> bool:
    """Whether ranks still meet: a cut from the start is a firewall or route, which stays."""
    return any(view.running and view.stage in (RENDEZVOUS, INIT) for view in views)


def _stand_still(views: Sequence[RankView], now: float) -> Incident:
    view = max(views, key=lambda one: one.silent_seconds)
    return Incident(IncidentKind.STALLED, view.rank, view.host, view.stage, now, ())


def _stand_all_still(views: Sequence[RankView]) -> bool:
    """Whether no rank has moved for a while; of one whose agent is silent that is not known."""
    return all(
        view.still_seconds >= _STILL_SECONDS for view in views if view.running and not view.silent_seconds
    )


def _hosts_of(cuts: Sequence[Incident]) -> set[str]:
    """The hosts at the ends of what is cut."""
    ends = (str(cut.facts.get(name, cut.host)) for cut in cuts for name in ("one_side", "other_side"))
    return {host for end in ends for host in end.split(", ")}


def _describe(cut: Incident) -> str:
    facts = cut.facts
    if "one_side" in facts:
        return f"nothing passes between {facts['one_side']} and {facts['other_side']}"
    return f"nothing passes between {cut.host} and the other hosts"
