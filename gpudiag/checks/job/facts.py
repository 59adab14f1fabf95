"""What proves a finding about ranks of a running job: lines, system calls, times, variables."""

from gpudiag.checks.job.activity import describe_line
from gpudiag.checks.job.gpu_use import describe_use
from gpudiag.checks.job.groups import Group
from gpudiag.model.evidence import Evidence, Subject, about_ranks
from gpudiag.model.job import REMOVABLE, Job
from gpudiag.model.script import OWN_STACKS
from gpudiag.reference.stacks import own_frames

_FRAMES = 3


def subject_of(group: Group, job: Job) -> Subject:
    """The ranks of the group; their machine where one of them is not known."""
    hosts = {one.seen.host or job.host for one in group.positions}
    host = hosts.pop() if len(hosts) == 1 else job.host
    return about_ranks(group.ranks if len(group.ranks) == len(group.positions) else (), host)


def remedy_of(group: Group) -> str:
    """What to do about ranks that wait, by what they wait for; empty where the kind is enough."""
    main = group.head.seen.last.main
    if group.head.throttle is not None:
        return group.head.throttle.remedy
    awaited = main.awaited if main is not None else None
    if awaited is None or awaited.kind != "lock file":
        return ""
    if REMOVABLE in awaited.detail:
        return (
            f"Remove the lock file, unless a job of another machine uses it: `rm {awaited.name}`;"
            " the rank then continues. Give the lock a `timeout=`; FileLock, which the kernel releases when"
            " its owner ends, leaves none behind."
        )
    return f"Look at what holds it: `fuser -v {awaited.name}`; give the lock a `timeout=`."


def facts_of(group: Group) -> tuple[Evidence, ...]:
    """The facts about the first rank of a group."""
    head, name = group.head, group.name
    facts = [
        Evidence(
            f"process of {name}",
            ", ".join(f"pid {one.seen.pid}" for one in group.positions[:8]),
            source="/proc",
        )
    ]
    for frame in own_frames(head.frames)[:_FRAMES]:
        text = f"{describe_line(frame)}: {frame.text}" if frame.text else describe_line(frame)
        facts.append(Evidence(f"line of {name}", text, source=head.read_by))
    innermost = head.frames[0] if head.frames else None
    if innermost is not None and innermost is not head.call.own:
        facts.append(Evidence(f"innermost frame of {name}", describe_line(innermost), source=head.read_by))
    main = head.seen.last.main
    if main is not None and (main.syscall or main.waits_in):
        where = " in ".join(word for word in (main.syscall, main.waits_in) if word)
        facts.append(Evidence(f"kernel of {name}", f"state {main.state}, {where}", source="/proc/PID/task"))
    if main is not None and main.native:
        source = "py-spy --native" if head.seen.last.stopped_seconds else "pystack"
        facts.append(Evidence(f"C functions of {name}", " < ".join(main.native[:4]), source=source))
    if use := describe_use(head.seen):
        facts.append(Evidence(f"GPU of {name}", use, source="NVML"))
    if head.since_seconds is not None and (head.busy or head.read_by == OWN_STACKS):
        facts.append(
            Evidence(
                f"at one place, {name}", round(head.since_seconds, 1), "seconds at least", source="looks"
            )
        )
    elif head.since_seconds is not None:
        facts.append(
            Evidence(
                f"last ran, {name}",
                round(head.since_seconds, 1),
                "seconds ago",
                source="/proc/PID/task/TID/sched",
            )
        )
    facts += [
        Evidence(f"counts of {name}", f"{one.operation} {one.count} in {one.group}", source=one.source)
        for one in head.seen.counts[:3]
    ]
    return tuple(facts)
