"""The general meaning of an error that no known failure explains."""

import re

_LOOK = "Read the log of the server at that address: does it still run?"
_KINDS = (
    (
        r"AssertionError|Assertion .*failed",
        "an assertion of the job's own code, or of a library that it calls, failed",
        "",
    ),
    (
        r"loading state_dict|(?:size|shape) mismatch for|[Mm]issing key|[Uu]nexpected key",
        "the checkpoint does not fit the model: another architecture, or another number of shards or ranks",
        "",
    ),
    (
        r"unexpected keyword argument|multiple values for|has no attribute|cannot import name",
        "two packages, or one of them and the job's code, are of versions that do not fit together",
        "`pip list` there, against the versions that the package of the last frame asks for.",
    ),
    (r"tensors to be on the same device", "a tensor was not moved to the device of its rank", ""),
    (
        r"sizes? of tensor|shapes? .*(?:mismatch|cannot be multiplied)|to be equal size",
        "tensors meet whose sizes do not fit: a sample or a setting is another than the code expects",
        "",
    ),
    (
        r"ModuleNotFoundError|ImportError",
        "a Python package or a part of it is not in the environment that ran",
        "",
    ),
    (r"FileNotFoundError|No such file", "a path that does not exist on this host: is it mounted here?", ""),
    (r"PermissionError|Permission denied", "this user may not use that file: `ls -l` it and its folders", ""),
    (r"Errno 98|ddress already in use", "another program uses the port: `ss -ltnp` shows which", ""),
    (r"Errno 111|Connection refused|can(?:'t|not) be reached", "nothing listens at that address", _LOOK),
    (
        r"Errno 104|Connection reset|RemoteDisconnected|Connection aborted",
        "the other end closed the connection",
        _LOOK,
    ),
    (
        r"HTTPError|Client Error|Server Error|Request failed: \d",
        "a server refused the request; its number and words give the reason",
        _LOOK,
    ),
    (
        r"gaierror|resolve host|Name or service not known|name resolution",
        "a host name that the resolver does not know",
        "Look it up on that host: `getent hosts NAME`. Where there is no way out, download before the job.",
    ),
    (r"[Tt]imed? ?out", "a wait took too long; the frame shows for what", ""),
    (
        r"MemoryError|out of memory",
        "memory ran out",
        "Smaller batches or requests; `gpudiag list` shows the GPUs' memory, `free -g` the host's.",
    ),
    (
        r"KeyError|IndexError|TypeError|ValueError|AttributeError|NameError|ZeroDivision",
        "the job's own code or data; the machine is rarely the reason",
        "",
    ),
)


def meaning_of(text: str) -> str:
    """What an error of this kind means; empty if its text shows nothing."""
    return next((meaning for kind, meaning, _ in _KINDS if re.search(kind, text)), "")


def remedy_of(text: str) -> str:
    """What to do about an error of this kind; empty where that is to fix the line that raised it."""
    return next((remedy for kind, _, remedy in _KINDS if re.search(kind, text)), "")
