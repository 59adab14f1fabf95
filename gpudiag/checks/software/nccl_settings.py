"""Checks of the variables that steer NCCL: misspelled, costly, or naming what is not there."""

import difflib
from collections.abc import Iterator
from functools import partial

from gpudiag.checks.host.findings import host_finding, host_state
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply, judged, not_readable
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.host_state import Settings
from gpudiag.model.reading import Missing
from gpudiag.reference.nccl_variables import (
    TORCH_PREFIX,
    costly_settings,
    is_known,
    known_variables,
    nccl_variables_source,
    renamed_variables,
    torch_variables,
)

_kind = partial(FindingKind, severity=Severity.CONFIG, category=Category.SW_CONFIG, owner=Owner.JOB)
_ENVIRONMENT_NCCL_BASIS = Basis(
    reads="Every NCCL_ variable of the environment, of /etc/nccl.conf and of the user's NCCL"
    " configuration file; RDMA devices in /sys/class/infiniband.",
    limit="the names in NCCL 2.18 and 2.32 and in its guide; TORCH_NCCL_ names of torch 2.13",
    look_also=("env | grep NCCL", "NCCL_DEBUG=INFO", "network.rdma_error"),
)
UNKNOWN = _kind(
    code="environment.nccl_unknown",
    outcome=Outcome.WARN,
    meaning="A variable that starts with NCCL_ or TORCH_NCCL_ and that nothing reads: most likely misspelled.",
    remedy="Correct its name, or unset it.",
    basis=_ENVIRONMENT_NCCL_BASIS,
)
COSTLY = _kind(
    code="environment.nccl_costly",
    outcome=Outcome.WARN,
    meaning="A variable makes NCCL slower than it would be on its own. Such variables are for debugging, not for jobs.",
    remedy="Unset it, and measure with `gpudiag nccl-test` before and after.",
    basis=_ENVIRONMENT_NCCL_BASIS,
)
DEVICE_ABSENT = _kind(
    code="environment.nccl_device_absent",
    outcome=Outcome.FAIL,
    meaning="NCCL_IB_HCA names RDMA devices, and this machine has none of them: NCCL falls back to sockets or fails.",
    remedy="Correct NCCL_IB_HCA according to what `ls /sys/class/infiniband` shows here, or unset it.",
    basis=_ENVIRONMENT_NCCL_BASIS,
)
INTERFACE_ABSENT = _kind(
    code="network.wrong_interface",
    outcome=Outcome.FAIL,
    meaning="A variable names network interfaces for the ranks' traffic, and none of them is up on this machine.",
    remedy="Correct it according to what `ip -brief address` shows here, or unset it.",
    basis=Basis(
        reads="NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME, against"
        " the interfaces that are up.",
        limit="at least one interface that matches, and is up",
        look_also=("ip -brief address", "network.only_virtual_interfaces"),
    ),
)
MACHINES_FILE = "/etc/nccl.conf"
# Which library reads each; NCCL's rules of matching are its own (guide, NCCL_SOCKET_IFNAME).
_INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


@check(
    "environment.nccl",
    title="NCCL's variables are spelled right and cost nothing",
    needs=("host_state",),
    reports=(DEVICE_ABSENT, UNKNOWN, COSTLY),
    readings=("environment", "/etc/nccl.conf", "$NCCL_CONF_FILE or ~/.nccl.conf"),
    confirmed="the strings of libnccl.so.2",
)
def environment_nccl(context: Context) -> Judgement:
    """FAIL for RDMA devices that are not here; WARN for unknown names and for values that cost speed."""
    settings = host_state(context).settings
    if isinstance(settings, Missing):
        return not_readable("the environment", settings)
    variables = nccl_settings(settings)
    of_torch = [name for name in settings.environment if name.startswith(TORCH_PREFIX)]
    if not variables and not of_torch:
        return does_not_apply("no variable of NCCL is set")
    return judged(
        *_unknown_to_torch(context, of_torch),
        *_absent_devices(context, settings, variables),
        *_unknown(context, variables),
        *_costly(context, variables),
    )


@check(
    "environment.interface",
    title="the interfaces that variables name are here and up",
    needs=("host_state",),
    reports=(INTERFACE_ABSENT,),
    readings=("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "interfaces"),
    confirmed="the Linux kernel's /sys/class/net; gloo's error for a wrong name",
)
def environment_interface(context: Context) -> Judgement:
    """FAIL for a variable that names no interface of this machine."""
    settings, interfaces = host_state(context).settings, context.snapshot.machine.interfaces
    if isinstance(settings, Missing):
        return not_readable("the environment", settings)
    variables = {**settings.environment, **nccl_settings(settings)}
    named = [name for name in _INTERFACE_VARIABLES if variables.get(name)]
    if not named:
        return does_not_apply("no variable names an interface")
    if isinstance(interfaces, Missing):
        return not_readable("network interfaces", interfaces)
    up = [interface.name for interface in interfaces if interface.up]
    findings = []
    for name in named:
        value = variables[name]
        if not any(names_interface(name, value, interface) for interface in up):
            here = ", ".join(up) or "none"
            evidence = Evidence(name, value, limit=here, source="environment; limit: interfaces that are up")
            message = f"{name}={value} matches no interface that is up (here: {here})"
            owner = _who_set(settings, name)
            findings.append(host_finding(context, INTERFACE_ABSENT, message, evidence, owner=owner))
    return judged(*findings)


def nccl_settings(settings: Settings) -> dict[str, str]:
    """NCCL's variables as NCCL sees them: the environment, over the configuration files."""
    found: dict[str, str] = {}
    if not isinstance(settings.nccl_files, Missing):
        for file in reversed(settings.nccl_files.values()):
            found |= file
    found |= settings.environment
    return {name: value for name, value in sorted(found.items()) if name.startswith("NCCL_")}


def names_interface(variable: str, value: str, interface: str) -> bool:
    """Whether the value selects that interface.

    gloo and TensorPipe take names, in a list; NCCL takes prefixes, exact names after `=`, and the
    opposite of the list after `^`.
    """
    words = [word.strip() for word in value.lstrip("^=").split(",") if word.strip()]
    if variable != "NCCL_SOCKET_IFNAME":
        return interface in words
    excluded, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    matches = interface in words if exact else interface.startswith(tuple(words))
    return matches != excluded


def _who_set(settings: Settings, variable: str) -> Owner:
    """The owner who must correct it: HOST where the machine's own file sets it, else JOB."""
    if variable in settings.environment or isinstance(settings.nccl_files, Missing):
        return Owner.JOB
    (file,) = [path for path, lines in settings.nccl_files.items() if variable in lines][:1] or [""]
    return Owner.HOST if file == MACHINES_FILE else Owner.JOB


def _absent_devices(context: Context, settings: Settings, variables: dict[str, str]) -> Iterator[Finding]:
    value, ports = variables.get("NCCL_IB_HCA", ""), host_state(context).infiniband_ports
    if not value or value.startswith("^"):
        return
    devices = [] if isinstance(ports, Missing) else sorted({port.device for port in ports})
    exact = value.startswith("=")
    words = [word.split(":")[0].strip() for word in value.lstrip("=").split(",")]
    if not any(
        device == word or (not exact and device.startswith(word)) for word in words for device in devices
    ):
        here = ", ".join(devices) or "none"
        evidence = Evidence(
            "NCCL_IB_HCA", value, limit=here, source="environment; limit: /sys/class/infiniband"
        )
        message = f"NCCL_IB_HCA={value} matches no RDMA device (here: {here})"
        owner = _who_set(settings, "NCCL_IB_HCA")
        yield host_finding(context, DEVICE_ABSENT, message, evidence, owner=owner)


def _unknown(context: Context, variables: dict[str, str]) -> Iterator[Finding]:
    for name, value in variables.items():
        if is_known(name) or name in renamed_variables():
            continue
        nearest = difflib.get_close_matches(name, known_variables(), n=1, cutoff=0.8)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        evidence = Evidence(name, value, source=f"environment; limit: {nccl_variables_source()}")
        yield host_finding(context, UNKNOWN, f"NCCL does not read {name}{hint}", evidence)


def _unknown_to_torch(context: Context, names: list[str]) -> Iterator[Finding]:
    for name in names:
        if name not in torch_variables():
            nearest = difflib.get_close_matches(name, torch_variables(), n=1, cutoff=0.8)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            evidence = Evidence(name, "set", source="environment; limit: torch 2.13")
            yield host_finding(context, UNKNOWN, f"torch does not read {name}{hint}", evidence)


def _costly(context: Context, variables: dict[str, str]) -> Iterator[Finding]:
    for setting in costly_settings():
        value = variables.get(setting.name)
        if value is not None and setting.covers(value):
            evidence = Evidence(setting.name, value, source="environment; limit: NCCL's guide")
            yield host_finding(context, COSTLY, f"{setting.name}={value}: {setting.cost}", evidence)
