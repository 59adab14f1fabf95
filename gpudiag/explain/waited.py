"""The kinds of waits for somebody, with the sentence of a verdict on each, and what is known of one."""

from dataclasses import dataclass

from gpudiag.compat import StrEnum


class WaitedKind(StrEnum):
    """What was wrong with those that the others waited for."""

    LATE = "late"  # they did not come to a collective, or were lost
    OTHER_CALL = "other_call"  # they are in another collective, or gave it another size
    UNDECIDED_CALL = "undecided_call"  # as many are in each of several: which is wrong is unknown
    NEVER_CAME = "never_came"  # they did not join the rendezvous
    # No line names the rank or the host.
    NOT_ALL_CAME = "not_all_came"
    RENDEZVOUS_UNREACHABLE = "rendezvous_unreachable"
    ENGINE_SILENT = "engine_silent"
    DISPATCH_SILENT = "dispatch_silent"
    TASKS_SILENT = "tasks_silent"
    BUILD_LOCKED = "build_locked"
    NODE_LOST = "node_lost"  # a line names its address


# The topic and the sentence of a verdict on them.
SENTENCES = {
    WaitedKind.LATE: (
        "collective.timed_out",
        ("{who} {are} what the others waited for, or lost: it hung, or ended without an error"),
    ),
    WaitedKind.OTHER_CALL: (
        "collective.mismatched",
        "{who} called another collective than the others, or with another size",
    ),
    WaitedKind.UNDECIDED_CALL: (
        "collective.mismatched",
        (
            "{who} called different collectives, or one with different sizes;"
            " these logs do not show which of them is wrong"
        ),
    ),
    WaitedKind.NEVER_CAME: ("rendezvous.missing_ranks", "{who} never joined the rendezvous"),
    WaitedKind.NOT_ALL_CAME: ("rendezvous.missing_ranks", "Not all ranks joined the rendezvous"),
    WaitedKind.RENDEZVOUS_UNREACHABLE: (
        "rendezvous.unreachable",
        "The host of the rendezvous could not be reached, or left",
    ),
    WaitedKind.ENGINE_SILENT: (
        "engine.worker_silent",
        "A worker of the engine did not answer: it hung, or ended without an error",
    ),
    WaitedKind.DISPATCH_SILENT: (
        "collective.dispatch_timed_out",
        "Ranks waited in DeepEP for data of other ranks that did not come",
    ),
    WaitedKind.TASKS_SILENT: ("launch.jax_waited", "Processes of JAX waited for others that did not come"),
    WaitedKind.NODE_LOST: (
        "host.ray_node_lost",
        "{who} {are} lost to Ray: it went down, or the network to it is gone",
    ),
    WaitedKind.BUILD_LOCKED: (
        "library.build_locked",
        (
            "The build of an extension waits for a lock file, and the process that"
            " made the file does not release it"
        ),
    ),
}
# Ranks did not meet.
NEVER_MET = (WaitedKind.NEVER_CAME, WaitedKind.NOT_ALL_CAME, WaitedKind.RENDEZVOUS_UNREACHABLE)
OF_RENDEZVOUS = {
    "rendezvous.missing_ranks": (WaitedKind.NOT_ALL_CAME, "the launcher waited for other hosts"),
    "rendezvous.unreachable": (
        WaitedKind.RENDEZVOUS_UNREACHABLE,
        "the host of the rendezvous did not answer",
    ),
}
OF_NOBODY = {
    "engine.worker_silent": WaitedKind.ENGINE_SILENT,
    "collective.dispatch_timed_out": WaitedKind.DISPATCH_SILENT,
    "launch.jax_waited": WaitedKind.TASKS_SILENT,
    "library.build_locked": WaitedKind.BUILD_LOCKED,
}


@dataclass(frozen=True, slots=True)
class Waited:
    """Whom the others waited for, and how that is known."""

    ranks: tuple[int, ...]
    how: str
    log: str
    line: int
    hosts: tuple[str, ...] = ()  # where no rank is known
    kind: WaitedKind = WaitedKind.LATE
    sides: tuple[str, ...] = ()  # of ranks that differ: who did what, and the line that shows it
