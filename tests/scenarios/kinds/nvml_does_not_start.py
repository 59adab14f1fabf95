"""NVML fails where nothing else shows a GPU: its library is the only trace, and trace enough."""

from itertools import cycle

from tests.scenarios.kinds.trial import Kind, Trial

# Nothing on the bus, no node, no module: what is left is the library and what it answers.
_BARE = """
gpu.on_bus = false
host.kernel_modules = []
host.device_nodes = []
host.pci_functions = []
nvml.present = true
nvml.driver_version = "580.105.08"
"""
_MACHINES = ("none", "h100x8", "t4x1", "laptop")
_HANGS = '\n[[nvml.faults]]\ncall = "{call}"\nhang = true\n'
_FAILS = '\n[[nvml.faults]]\ncall = "{call}"\ncode = {code}\n'

_WAYS = (
    ("init hangs", _HANGS.format(call="nvmlInit*"), "nvml.timed_out"),
    (
        "the query of the driver's version hangs",
        _HANGS.format(call="nvmlSystemGetDriverVersion"),
        "nvml.timed_out",
    ),
    ("the count of devices hangs", _HANGS.format(call="nvmlDeviceGetCount*"), "nvml.timed_out"),
    ("another version than the driver (18)", "nvml.init_code = 18\n", "nvml.version_mismatch"),
    ("no permission (4)", "nvml.init_code = 4\n", "nvml.no_permission"),
    ("blocked by the operating system (17)", "nvml.init_code = 17\n", "nvml.no_permission"),
    ("no driver loaded (9)", "nvml.init_code = 9\n", "nvml.driver_not_loaded"),
    ("an unknown error (999)", "nvml.init_code = 999\n", "nvml.failed"),
    ("a GPU is lost (15)", "nvml.init_code = 15\n", "nvml.failed"),
    ("the count of devices fails (999)", _FAILS.format(call="nvmlDeviceGetCount*", code=999), "nvml.failed"),
    ("the count is not supported (3)", _FAILS.format(call="nvmlDeviceGetCount*", code=3), "nvml.failed"),
    ("a power cable is missing (8)", "nvml.init_code = 8\n", "nvml.failed"),
)

KINDS = (
    Kind(
        "NVML does not start, and nothing else shows a GPU",
        (
            *(
                Trial(words, machine, (code,), differs=_BARE + lines)
                for (words, lines, code), machine in zip(_WAYS, cycle(_MACHINES), strict=False)
            ),
            *(
                Trial(words, "none", (code,), differs=_BARE + lines)
                for words, lines, code in (_WAYS[3], _WAYS[6])
            ),
            Trial("no library, and no trace of a GPU", "none"),
            Trial(
                "the library of a shared image, and no GPU is expected",
                "none",
                differs=_BARE + "nvml.init_code = 9\n",
                flags=("--expect-gpus", "0"),
            ),
            *(Trial("it answers", machine) for machine in _MACHINES[1:]),
        ),
    ),
)
