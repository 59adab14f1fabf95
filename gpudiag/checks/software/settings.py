"""Checks of the variables for CUDA, torch and NCCL: misspelled, costly, or naming what is not there."""

import difflib
from collections import Counter
from collections.abc import Iterator
from functools import partial

from gpudiag.checks.gpu.products import is_consumer
from gpudiag.checks.per_device import answering
from gpudiag.checks.registry import Basis, FindingKind, Judgement, check, does_not_apply, judged, not_readable
from gpudiag.checks.subjects import host_finding, host_state
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence, of_variable
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.host_state import Settings
from gpudiag.model.published import names_interface
from gpudiag.model.reading import Missing
from gpudiag.reference.software import (
    TORCH_PREFIX,
    costly_settings,
    is_known,
    known_variables,
    nccl_variables_source,
    renamed_variables,
    torch_variables,
)

# --- CUDA and torch

_kind = partial(FindingKind, severity=Severity.CONFIG, category=Category.SW_CONFIG, owner=Owner.JOB)
_ENVIRONMENT_CUDA_VISIBLE_DEVICES_BASIS = Basis(
    reads="CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and LOCAL_RANK, against the GPUs and MIG instances"
    " that NVML lists.",
    limit="the GPUs and MIG instances that NVML lists (CUDA guide, environment variables)",
    look_also=("gpudiag list", "nvidia-smi -L", "cuda.invalid_device", "cuda.no_device"),
)
_visible_kind = partial(_kind, outcome=Outcome.FAIL, basis=_ENVIRONMENT_CUDA_VISIBLE_DEVICES_BASIS)
_ENVIRONMENT_DEBUG_BASIS = Basis(
    reads="CUDA_, TORCH_, PYTORCH_ and NCCL_ variables, and LD_LIBRARY_PATH.",
    limit="no such variable; torch's own list of allocator options (2.13)",
    look_also=("env | grep -e CUDA -e TORCH -e NCCL", "cuda.forward_compatibility"),
)
_debug_kind = partial(_kind, outcome=Outcome.WARN, basis=_ENVIRONMENT_DEBUG_BASIS)
VISIBLE_INVALID = _visible_kind(
    code="environment.visible_devices_invalid",
    meaning=(
        "CUDA_VISIBLE_DEVICES names a GPU that is not here; CUDA ignores it and every GPU after it, silently."
    ),
    remedy="Correct CUDA_VISIBLE_DEVICES; `gpudiag list --free 1 --ids` prints UUIDs that it accepts.",
)
VISIBLE_NONE = _visible_kind(
    code="environment.visible_devices_none",
    meaning=(
        "CUDA_VISIBLE_DEVICES hides every GPU from this process (empty, -1, NoDevFiles): CUDA reports no GPU."
    ),
    remedy=(
        "Unset CUDA_VISIBLE_DEVICES, or name GPUs in it (`gpudiag list --free 1 --ids`);"
        " under a scheduler, ask it for GPUs."
    ),
)
VISIBLE_TWICE = _visible_kind(
    code="environment.visible_devices_twice",
    meaning="CUDA_VISIBLE_DEVICES names a GPU twice; CUDA then shows none at all.",
    remedy="Name each GPU once in CUDA_VISIBLE_DEVICES.",
)
LOCAL_RANK_WITHOUT_GPU = _visible_kind(
    code="environment.local_rank_without_gpu",
    meaning="LOCAL_RANK is not below the number of GPUs that this rank can see.",
    remedy="Start as many ranks as the machine has GPUs, or let every rank see all GPUs.",
)
ORDER_UNSET = _visible_kind(
    code="environment.device_order_unset",
    outcome=Outcome.WARN,
    meaning=(
        "The GPUs are of different models, and CUDA numbers them by speed:"
        " ordinals differ from those of nvidia-smi."
    ),
    remedy="Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID.",
)
SEVERAL_INSTANCES = _visible_kind(
    code="environment.several_mig_instances",
    outcome=Outcome.WARN,
    meaning="CUDA_VISIBLE_DEVICES names several MIG instances; a process uses the first of them only.",
    remedy="Give each rank one instance of its own in CUDA_VISIBLE_DEVICES.",
)
DEBUG_SWITCH = _debug_kind(
    code="environment.debug_switch",
    meaning="A debugging variable is set; it makes programs slower, or stops them.",
    remedy="Unset it for production jobs.",
)
RENAMED = _debug_kind(
    code="environment.renamed_variable",
    severity=Severity.MONITOR,
    meaning="A variable has a new name; the old one will stop working.",
    remedy="Use the new name.",
)
ALLOCATOR_OPTION = _debug_kind(
    code="environment.allocator_option",
    meaning=(
        "PYTORCH_CUDA_ALLOC_CONF has an option that torch's allocator does not"
        " know; torch refuses to start CUDA."
    ),
    remedy="Correct it according to torch's notes on CUDA memory management.",
)
COMPAT_PATH = _debug_kind(
    code="environment.cuda_compat_path",
    meaning=(
        "LD_LIBRARY_PATH names a CUDA compat folder, and the GPUs do not support forward compatibility (804)."
    ),
    remedy="Take the compat folder out of LD_LIBRARY_PATH.",
)
_END = "-1"  # CUDA reads no further
_HIDES_ALL = (_END, "", "NoDevFiles", "none")  # Slurm writes NoDevFiles for a job without GPUs
# What costs speed or changes behaviour: variable, values (empty: any but 0), what it does.
_DEBUG_SWITCHES = (
    ("CUDA_LAUNCH_BLOCKING", "every kernel launch waits for its kernel"),
    ("CUDA_INJECTION64_PATH", "a profiler or tracer is loaded into every CUDA program"),
    ("CUDA_ENABLE_COREDUMP_ON_EXCEPTION", "a GPU core dump is written on every CUDA exception"),
    ("CUDA_DEVICE_WAITS_ON_EXCEPTION", "programs stop and wait for a debugger on a CUDA exception"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "every tensor is allocated by the driver"),
    ("TORCH_NCCL_BLOCKING_WAIT", "every collective waits for its end"),
    ("TORCH_NCCL_NAN_CHECK", "every collective searches its input for NaN"),
    ("CUDA_PROFILE", "the profiler is on"),
)
# torch/c10 AllocatorConfig.h and CUDAAllocatorConfig.h, and the strings of libc10 (2.13).
_ALLOCATOR_OPTIONS = frozenset(
    """
    backend expandable_segments garbage_collection_threshold graph_capture_record_stream_reuse
    max_non_split_rounding_mb max_split_size_mb per_process_memory_fraction pinned_free_catch_all
    pinned_max_cached_size_mb pinned_max_round_threshold_mb pinned_num_register_threads
    pinned_reserve_segment_size_mb pinned_use_background_threads pinned_use_cuda_host_register
    pinned_use_hip_host_register release_lock_on_cudamalloc release_lock_on_hipmalloc
    roundup_power2_divisions throw_on_cudamalloc_oom
    """.split()
)


@check(
    "environment.cuda_visible_devices",
    title="CUDA_VISIBLE_DEVICES names GPUs of this machine, once each",
    needs=("gpus", "host_state"),
    reports=(
        VISIBLE_INVALID,
        VISIBLE_NONE,
        VISIBLE_TWICE,
        LOCAL_RANK_WITHOUT_GPU,
        SEVERAL_INSTANCES,
        ORDER_UNSET,
    ),
    readings=("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LOCAL_RANK", "devices"),
    confirmed="CUDA's guide",
)
def environment_cuda_visible_devices(context: Context) -> Judgement:
    """FAIL for an absent GPU, one named twice, a rank without one; WARN for CUDA's order of unlike GPUs."""
    settings = host_state(context).settings
    if isinstance(settings, Missing):
        return not_readable("the environment", settings)
    value = settings.environment.get("CUDA_VISIBLE_DEVICES")
    findings = [*_order(context, settings)]
    if value is None:
        findings += _local_rank(context, settings, len(context.snapshot.devices))
        return judged(*findings)
    tokens = [token.strip() for token in value.split(",")] if value.strip() else []
    if not tokens or tokens[0] in _HIDES_ALL:
        return judged(*findings, _none_visible(context, value))
    findings += _invalid(context, value, tokens)
    findings += _twice(context, value, tokens)
    findings += _several_instances(context, value, tokens)
    if not findings and tokens:
        findings += _local_rank(context, settings, len(tokens))
    return judged(*findings)


@check(
    "environment.debug",
    title="no debug switch is left on, and no variable has an old name",
    needs=("host_state",),
    reports=(DEBUG_SWITCH, RENAMED, ALLOCATOR_OPTION, COMPAT_PATH),
    readings=("environment: CUDA_*, TORCH_*, PYTORCH_*, NCCL_*, LD_LIBRARY_PATH",),
    confirmed="torch 2.13's headers and strings",
)
def environment_debug(context: Context) -> Judgement:
    """WARN for switches that make programs slow, for old names, and for options that torch does not know."""
    settings = host_state(context).settings
    if isinstance(settings, Missing):
        return not_readable("the environment", settings)
    return judged(
        *_switches(context, settings),
        *_renamed(context, settings),
        *_allocator(context, settings),
        *_compat(context, settings),
    )


def _invalid(context: Context, value: str, tokens: list[str]) -> Iterator[Finding]:
    for place, token in enumerate(tokens):
        ends_the_list = token == _END and place == len(tokens) - 1
        if ends_the_list or _exists(context, token):
            continue
        here = len(context.snapshot.devices)
        after = len(tokens) - place - 1
        ignored = f", so CUDA ignores it and the {after} after it" if after else ""
        if place == 0:
            ignored = ", so CUDA shows no GPU at all"
        evidence = of_variable("CUDA_VISIBLE_DEVICES", value, limit=f"{here} GPUs", limit_source="NVML")
        message = (
            f"CUDA_VISIBLE_DEVICES={value}: {token or 'an empty entry'} is not"
            f" one of {here} GPUs here{ignored}"
        )
        yield host_finding(context, VISIBLE_INVALID, message, evidence)
        return


def hides_every_gpu(context: Context) -> bool:
    """Whether the job's own CUDA_VISIBLE_DEVICES leaves CUDA no GPU.

    It names none, begins with one that is not here, or names one twice.
    """
    value = context.snapshot.machine.allocation.get("CUDA_VISIBLE_DEVICES")
    if value is None or not context.snapshot.devices:
        return False
    tokens = [token.strip() for token in value.split(",")]
    if tokens[0] in _HIDES_ALL or not _exists(context, tokens[0]):
        return True
    return any(_twice(context, value, tokens))


def _none_visible(context: Context, value: str) -> Finding:
    here = len(context.snapshot.devices)
    evidence = of_variable("CUDA_VISIBLE_DEVICES", value, limit=f"{here} GPUs", limit_source="NVML")
    message = f"CUDA_VISIBLE_DEVICES={value} hides all {here} GPUs here from this process"
    return host_finding(context, VISIBLE_NONE, message, evidence)


def _exists(context: Context, token: str) -> bool:
    devices = context.snapshot.devices
    if token.isdecimal():
        return int(token) < len(devices)
    if not token.startswith(("GPU-", "MIG-")):
        return False
    uuids = [device.id.uuid for device in devices]
    for device in devices:
        instances = device.mig_instances
        uuids += [] if isinstance(instances, Missing) else [instance.uuid for instance in instances]
    return any(not isinstance(uuid, Missing) and uuid.startswith(token) for uuid in uuids)


def _twice(context: Context, value: str, tokens: list[str]) -> Iterator[Finding]:
    repeated = [token for token, count in Counter(tokens).items() if count > 1]
    if repeated:
        evidence = of_variable("CUDA_VISIBLE_DEVICES", value)
        message = f"CUDA_VISIBLE_DEVICES={value} names {', '.join(repeated)} twice"
        yield host_finding(context, VISIBLE_TWICE, message, evidence)


def _several_instances(context: Context, value: str, tokens: list[str]) -> Iterator[Finding]:
    instances = [token for token in tokens if token.startswith("MIG-")]
    if len(set(instances)) > 1:
        evidence = of_variable("CUDA_VISIBLE_DEVICES", value, limit=1, limit_source="NVIDIA's MIG guide")
        message = f"CUDA_VISIBLE_DEVICES names {len(set(instances))} MIG instances"
        yield host_finding(context, SEVERAL_INSTANCES, message, evidence)


def _local_rank(context: Context, settings: Settings, visible: int) -> Iterator[Finding]:
    text = settings.environment.get("LOCAL_RANK", "")
    # One GPU for each rank, chosen by the launcher, is as good as all for all.
    if text.isdecimal() and int(text) >= visible > 1:
        evidence = of_variable("LOCAL_RANK", int(text), limit=visible, limit_source="visible GPUs")
        message = f"LOCAL_RANK={text}, and {visible} GPUs are visible"
        yield host_finding(context, LOCAL_RANK_WITHOUT_GPU, message, evidence)


def _order(context: Context, settings: Settings) -> Iterator[Finding]:
    names = {device.name for device in answering(context.snapshot) if not isinstance(device.name, Missing)}
    if len(names) > 1 and settings.environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        evidence = Evidence("products", ", ".join(sorted(names)), source="NVML")
        message = f"{len(names)} kinds of GPU are here, and CUDA_DEVICE_ORDER is not PCI_BUS_ID"
        yield host_finding(context, ORDER_UNSET, message, evidence)


def _switches(context: Context, settings: Settings) -> Iterator[Finding]:
    for name, words in _DEBUG_SWITCHES:
        value = settings.environment.get(name, "")
        if value not in ("", "0"):
            evidence = of_variable(name, value)
            yield host_finding(context, DEBUG_SWITCH, f"{name}={value}: {words}", evidence)
    if settings.environment.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        evidence = of_variable("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
        message = "TORCH_DISTRIBUTED_DEBUG=DETAIL: every collective is compared across ranks first"
        yield host_finding(context, DEBUG_SWITCH, message, evidence)


def _renamed(context: Context, settings: Settings) -> Iterator[Finding]:
    for old, new in renamed_variables().items():
        if old in settings.environment:
            evidence = of_variable(old, settings.environment[old])
            yield host_finding(context, RENAMED, f"{old} is now {new}", evidence)


def _allocator(context: Context, settings: Settings) -> Iterator[Finding]:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        value = settings.environment.get(name, "")
        unknown = [option for option in parse_allocator_options(value) if option not in _ALLOCATOR_OPTIONS]
        if unknown:
            evidence = of_variable(name, value)
            message = f"{name}: torch's allocator does not know {', '.join(unknown)}"
            yield host_finding(context, ALLOCATOR_OPTION, message, evidence)


def parse_allocator_options(text: str) -> list[str]:
    """The names of the options in `name:value,name:[1:2,3:4]`, in their order."""
    options = []
    depth = 0
    word = ""
    for character in f"{text},":
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            options += [word.partition(":")[0].strip()] if word.strip() else []
            word = ""
        else:
            word += character
    return options


def _compat(context: Context, settings: Settings) -> Iterator[Finding]:
    folders = settings.environment.get("LD_LIBRARY_PATH", "").split(":")
    compat = [folder for folder in folders if "cuda" in folder and folder.rstrip("/").endswith("/compat")]
    if compat and any(is_consumer(device) for device in answering(context.snapshot)):
        evidence = of_variable("LD_LIBRARY_PATH", compat[0])
        message = f"LD_LIBRARY_PATH names {compat[0]}, and GeForce GPUs do not support it"
        yield host_finding(context, COMPAT_PATH, message, evidence)


# --- NCCL

_ENVIRONMENT_NCCL_BASIS = Basis(
    reads="Every NCCL_ variable of the environment, of /etc/nccl.conf and of the user's NCCL"
    " configuration file; RDMA devices in /sys/class/infiniband.",
    limit="the names in NCCL 2.18 and 2.32 and in its guide; TORCH_NCCL_ names of torch 2.13",
    look_also=("env | grep NCCL", "NCCL_DEBUG=INFO", "network.rdma_error"),
)
UNKNOWN = _kind(
    code="environment.nccl_unknown",
    outcome=Outcome.WARN,
    meaning=(
        "NCCL and torch read no variable of this name, which starts with NCCL_ or"
        " TORCH_NCCL_: it is most likely misspelled."
    ),
    remedy="Correct its name, or unset it.",
    basis=_ENVIRONMENT_NCCL_BASIS,
)
COSTLY = _kind(
    code="environment.nccl_costly",
    outcome=Outcome.WARN,
    meaning="A debugging variable makes NCCL slower.",
    remedy="Unset it, and measure with `gpudiag nccl-test` before and after.",
    basis=_ENVIRONMENT_NCCL_BASIS,
)
DEVICE_ABSENT = _kind(
    code="environment.nccl_device_absent",
    outcome=Outcome.FAIL,
    meaning=(
        "NCCL_IB_HCA names RDMA devices, and this machine has none of them:"
        " NCCL falls back to sockets or fails."
    ),
    remedy="Correct NCCL_IB_HCA : `ls /sys/class/infiniband` lists the devices, or unset it.",
    basis=_ENVIRONMENT_NCCL_BASIS,
)
INTERFACE_ABSENT = _kind(
    code="network.wrong_interface",
    outcome=Outcome.FAIL,
    meaning=(
        "A variable names network interfaces for the ranks' traffic, and none of them is up on this machine."
    ),
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
    title="NCCL's variables are spelled correctly and cost no speed",
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
    title="every interface that a variable names exists and is up",
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
            evidence = of_variable(name, value, limit=here, limit_source="interfaces that are up")
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
        evidence = of_variable("NCCL_IB_HCA", value, limit=here, limit_source="/sys/class/infiniband")
        message = f"NCCL_IB_HCA={value} matches no RDMA device (here: {here})"
        owner = _who_set(settings, "NCCL_IB_HCA")
        yield host_finding(context, DEVICE_ABSENT, message, evidence, owner=owner)


def _unknown(context: Context, variables: dict[str, str]) -> Iterator[Finding]:
    for name, value in variables.items():
        if is_known(name) or name in renamed_variables():
            continue
        nearest = difflib.get_close_matches(name, known_variables(), n=1, cutoff=0.8)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        evidence = of_variable(name, value, limit_source=nccl_variables_source())
        yield host_finding(context, UNKNOWN, f"NCCL does not read {name}{hint}", evidence)


def _unknown_to_torch(context: Context, names: list[str]) -> Iterator[Finding]:
    for name in names:
        if name not in torch_variables():
            nearest = difflib.get_close_matches(name, torch_variables(), n=1, cutoff=0.8)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            evidence = of_variable(name, "set", limit_source="torch 2.13")
            yield host_finding(context, UNKNOWN, f"torch does not read {name}{hint}", evidence)


def _costly(context: Context, variables: dict[str, str]) -> Iterator[Finding]:
    for setting in costly_settings():
        value = variables.get(setting.name)
        if value is not None and setting.covers(value):
            evidence = of_variable(setting.name, value, limit_source="NCCL's guide")
            yield host_finding(context, COSTLY, f"{setting.name}={value}: {setting.cost}", evidence)
