"""What torch.compile made of a user's function: whether a rank runs it, and waits in a collective of it."""

from dataclasses import replace

from gpudiag.model.job import ThreadLook
from gpudiag.reference.stacks import Call, runs_compiled, runs_operation
from gpudiag.reference.waits import COMPILER, RANKS

OF_GRAPH = "collective of a compiled function"  # which one, its frames do not show


def with_compiled_function(call: Call, main: ThreadLook) -> Call:
    """The call: a collective where a thread sleeps in what a compiled function runs.

    The collective's name is in no frame. What else torch's operations wait for runs in threads of the
    process, which are seen to work. A compiled function that runs waits for no compiler, though frames of the
    compiler called it.
    """
    if call.awaited not in ("", COMPILER):
        return call
    if runs_operation(call.library) and main.state == "S" and main.syscall == "futex":
        return replace(call, awaited=RANKS, words="for other ranks, in a collective", operation=OF_GRAPH)
    if call.awaited == COMPILER and runs_compiled(call.library):
        return replace(call, awaited="", words="")
    return call
