"""NVLinks that are down: on one GPU, on all, behind one switch, or not listed at all.

NVML alone tells them.
"""

from tests.scenarios.kinds.trial import Kind, Trial

# Base machines whose boards are joined by NVLink, and how many GPUs they have; only the first has its
# switches on the bus.
BOARDS = {"h100x8": 8, "b200x8": 8, "gb200x4": 4, "gb300x4": 4, "a100x16": 16, "v100x8": 8}
ONE_LINK_LESS = "[gpus.2]\nnvlinks = {{ count = {} }}\n"
OUT_OF_USE = (
    "[gpu]\nmig_mode = 'disabled'\nmig_mode_pending = 'disabled'\nmig_instances = []\n"
    "nvlinks = { count = 18 }\n"
)
HALF_IN_A_CONTAINER = (
    "visible_gpus = [0, 1, 2, 3]\n[environment]\nNVIDIA_VISIBLE_DEVICES = '0,1,2,3'\n"
    "[host]\ncontainer_runtime = 'docker'\ncontainer_id = '5d21'\nprocesses = []\n"
)
HALF_IN_A_CONTAINER = (
    "visible_gpus = [0, 1, 2, 3]\n[environment]\nNVIDIA_VISIBLE_DEVICES = '0,1,2,3'\n"
    "[host]\ncontainer_runtime = 'docker'\ncontainer_id = '5d21'\nprocesses = []\n"
)


def down(gpus: range | tuple[int, ...], *links: int) -> str:
    """Those links, or all of them, down on those GPUs."""
    return "+".join(
        f"nvlink-down:{gpu}" + (f":{link}" if link is not None else "")
        for gpu in gpus
        for link in links or (None,)
    )


def fewer(machine: str, count: int) -> str:
    """Every GPU lists that many links."""
    return "[gpu]\n" + f"nvlinks = {{ count = {count}, counters = {str(machine == 'h100x8').lower()} }}\n"


UNBRIDGED = (
    Trial("two cards of four have no bridge", "a6000x4", faults=down((2, 3))),
    Trial("consumer cards have no NVLink", "rtx4090x2", faults="busy:0"),
    Trial("a superchip without a switch has its links down", "gh200", faults=down((0,)),
        differs="[gpu]\nnvlinks = { count = 18 }\n"),
    Trial("a GPU alone in a virtual machine has its links down", "h100-mig", faults=down((0,)),
        differs=OUT_OF_USE),
    Trial("a guest with a share of a GPU has none", "vgpu"),
)  # fmt: skip

KINDS = (
    Kind(
        "NVLinks of one GPU down",
        (
            *(Trial("one link", machine, ("nvlink.link_down 2",),
                faults=down((2,), 3)) for machine in BOARDS),
            *(Trial("all links", machine, ("nvlink.link_down 1",), faults=down((1,))) for machine in BOARDS),
            Trial("one link of a bridge", "a6000x4", ("nvlink.link_down 2",), faults=down((2,), 1)),
            Trial(
                "on two GPUs of eight", "b200x8", ("nvlink.link_down 1", "nvlink.link_down 6"),
                faults=f"{down((1,), 4, 5)}+{down((6,), 17)}",
            ),
            Trial("in use by a job", "h100x8", faults="busy:1"),
            Trial("the GPU is in MIG mode, which uses none", "h100-mig"),
            *UNBRIDGED,
        ),
    ),
    Kind(
        "no NVLink up on any GPU",
        (
            *(
                Trial("all links of all GPUs", machine, ("nvlink.all_links_down",), faults=down(range(count)))
                for machine, count in BOARDS.items()
            ),
            *(
                Trial(
                    "the driver calls them not supported", machine, ("nvlink.all_links_down",),
                    differs="[gpu.missing]\nnot_supported = ['nvlinks']\n",
                )
                for machine in ("b200x8", "gb200x4", "v100x8")
            ),
            Trial("no card has a bridge", "a6000x4", faults=down(range(4))),
            Trial("no card can have one", "l40sx8"),
            *UNBRIDGED[1:],
        ),
    ),
    Kind(
        "a switch that all GPUs share is dead",
        (
            Trial("its links", "h100x8", ("nvlink.shared_links_down",),
                faults=down(range(8), 0, 4, 8, 12, 16)),
            Trial("its links", "a100x8", ("nvlink.shared_links_down",), faults=down(range(8), 1, 7)),
            *(
                Trial("the same link everywhere", machine, ("nvlink.shared_links_down",),
                    faults=down(range(BOARDS[machine]), 3))
                for machine in ("b200x8", "gb200x4", "gb300x4", "a100x16")
            ),
            Trial(
                "other links on each GPU", "gb200x4", ("nvlink.shared_links_down",),
                faults="+".join(down((gpu,), 2 * gpu, 2 * gpu + 1) for gpu in range(4)),
            ),
            Trial("healthy under load", "h100x8", faults="busy:0+busy:5"),
            Trial("cards that are bridged in pairs", "a6000x4"),
            Trial("a mesh has no switch", "v100x8"),
        ),
    ),
    Kind(
        "fewer NVLinks than the model has",
        (
            *(
                Trial("on every GPU", machine, ("nvlink.shared_links_down",), differs=fewer(machine, 16))
                for machine in ("h100x8", "b200x8", "gb200x4", "gb300x4")
            ),
            Trial("on every GPU", "a100x16", ("nvlink.shared_links_down",), differs=fewer("a100x16", 10)),
            *(
                Trial("on one GPU", machine, ("nvlink.link_down 2",), differs=ONE_LINK_LESS.format(count))
                for machine, count in (("b200x8", 17), ("gb200x4", 12), ("a100x16", 11))
            ),
            Trial("a bridged card with half of its bridges", "a6000x4", differs=fewer("a6000x4", 2)),
            Trial("a model that gpudiag does not know", "b200x8",
                differs="[gpu]\nname = 'NVIDIA B999'\nnvlinks = { count = 12, counters = false }\n"),
            Trial("the model for export has eight", "a100x8",
                differs="[gpu]\nname = 'NVIDIA A800-SXM4-40GB'\nnvlinks = { count = 8 }\n"),
            Trial("half of a mesh, in a container", "v100x8", differs=HALF_IN_A_CONTAINER),
        ),
    ),
)  # fmt: skip
