"""CUDA_VISIBLE_DEVICES that shows a job other GPUs than it names, or none."""

from tests.scenarios.kinds.trial import Kind, Trial


def _set(value: str) -> str:
    return f"[environment]\nCUDA_VISIBLE_DEVICES = '{value}'\n"


KINDS = (
    Kind(
        "visible devices: none, or other than named",
        tuple(
            trial
            for machine in ("h100x8", "a100x8", "l40sx8", "rtx4090x2")
            for trial in (
                *(
                    Trial(
                        f"'{value}' hides all",
                        machine,
                        ("environment.visible_devices_none",),
                        differs=_set(value),
                    )
                    for value in ("", "-1", "NoDevFiles")
                ),
                *(
                    Trial(
                        f"'{value}' names what is not here",
                        machine,
                        ("environment.visible_devices_invalid",),
                        differs=_set(value),
                    )
                    for value in ("99", "GPU-00000000-dead", "0,-1,1")
                ),
                *(Trial(f"'{value}'", machine, differs=_set(value)) for value in ("0", "1,0,-1")),
            )
        ),
    ),
)
