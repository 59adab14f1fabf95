"""MIG instances as series: who they are, and the memory and activity of each GPU instance.

Compute instances share these: a series for each would count them twice.
"""

from collections.abc import Iterator

from gpudiag.model.device import Device, MigInstance
from gpudiag.model.reading import Missing, value_or
from gpudiag.render.exposition import Labels, Page, braced, number, text_of
from gpudiag.render.metrics import MIG_METRICS

_PROFILE_AFTER = " MIG "  # in the name of a MIG device: `NVIDIA H100 80GB HBM3 MIG 1g.10gb`


def add_mig(page: Page, devices: list[tuple[Device, Labels, Labels]], *, full: bool) -> None:
    """Add each GPU's MIG instances; a GPU comes with labels: those that identify it, those of a sample."""
    infos = [
        ({**identity, **_info(instance)}, 1.0)
        for device, identity, _ in devices
        for instance in value_or(device.mig_instances, ())
    ]
    page.add("gpudiag_mig_info", "info", "Who each MIG instance is.", infos)
    instances = [
        (
            {
                **labels,
                "gpu_instance_id": text_of(instance.gpu_instance_id),
                "profile": profile_of(instance),
            },
            instance,
        )
        for device, _, labels in devices
        for instance in gpu_instances(device)
    ]
    for metric in MIG_METRICS:
        family, name = metric.family, metric.name
        if full or family.core:
            lines = [
                f"{name}{braced({**labels, **more})} {number(value)}"
                for labels, instance in instances
                for more, value in metric.samples(instance)
            ]
            page.add_lines(name, family.kind, family.text, lines)


def gpu_instances(device: Device) -> Iterator[MigInstance]:
    """One MIG instance for each GPU instance of the GPU, the first that NVML lists."""
    seen = set()
    for instance in value_or(device.mig_instances, ()):
        number_of_instance = instance.gpu_instance_id
        if not isinstance(number_of_instance, Missing) and number_of_instance not in seen:
            seen.add(number_of_instance)
            yield instance


def profile_of(instance: MigInstance) -> str:
    """The profile that the instance was made by, `1g.10gb`.

    It is the whole name where that has none, and empty without one.
    """
    name = text_of(instance.name)
    return name.partition(_PROFILE_AFTER)[2] or name


def _info(instance: MigInstance) -> Labels:
    return {
        "mig_uuid": text_of(instance.uuid),
        "gpu_instance_id": text_of(instance.gpu_instance_id),
        "compute_instance_id": text_of(instance.compute_instance_id),
        "profile": profile_of(instance),
    }
