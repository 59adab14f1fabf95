"""Who has which GPU: what the kubelet gave to containers, and the Slurm jobs of the processes, by GPU."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from gpudiag.model.device import Device, Snapshot
from gpudiag.model.owners import GpuOwners, JobUse, PodDevices, PodUse
from gpudiag.model.reading import Missing, value_or
from gpudiag.model.service import Live

NOBODY = GpuOwners()

# The ids of NVIDIA's device plugin: a UUID, with `::N` where several share the GPU; of a MIG instance its
# UUID, before driver 470 `MIG-GPU-UUID/GI/CI`. Of Google's: nvidia0, nvidia0/gi1, each with /vgpuN where
# several share it.
_OLD_MIG = re.compile(r"MIG-(GPU-[^/]+)/(\d+)/\d+")
_BY_NAME = re.compile(r"nvidia(\d+)(?:/gi(\d+))?")
_SHARES = ("::", "/vgpu")


def find_owners(snapshot: Snapshot, given: PodDevices | None) -> dict[str, GpuOwners]:
    """Who has each GPU, by the GPU's UUID; a GPU that nobody is known to have is left out."""
    by_uuid = {
        str(device.id.uuid): device for device in snapshot.devices if not isinstance(device.id.uuid, Missing)
    }
    pods = _pods_of(by_uuid, given)
    offered = _offered(by_uuid, given)
    found = {}
    for uuid, device in by_uuid.items():
        owners = GpuOwners(
            pods=tuple(sorted(pods.get(uuid, ()), key=_order)),
            jobs=_jobs_of(device),
            allocatable=None if offered is None else uuid in offered,
        )
        if owners != NOBODY:
            found[uuid] = owners
    return found


def add_owners(live: Live, owners: Mapping[str, GpuOwners]) -> Live:
    """The tick with the pods and jobs of each GPU."""
    if not owners:
        return live
    rows = []
    for row in live.devices:
        whose = owners.get(str(value_or(row.id.uuid, "")), NOBODY)
        rows.append(replace(row, pods=whose.pods, slurm_jobs=whose.jobs))
    return replace(live, devices=tuple(rows))


def _pods_of(by_uuid: Mapping[str, Device], given: PodDevices | None) -> dict[str, set[PodUse]]:
    uses: dict[str, set[PodUse]] = defaultdict(set)
    finder = _Finder(by_uuid)
    for part in () if given is None else given.devices:
        place = finder.find(part.device_id)
        if place is not None:
            uuid, instance, replica = place
            uses[uuid].add(PodUse(part.namespace, part.pod, part.container, instance, replica))
    return uses


def _offered(by_uuid: Mapping[str, Device], given: PodDevices | None) -> set[str] | None:
    """The GPUs that the kubelet offers, whole or in parts.

    It is None where it offers none: it has no device plugin.
    """
    if given is None or not given.allocatable:
        return None
    finder = _Finder(by_uuid)
    places = (finder.find(device_id) for device_id in given.allocatable)
    return {place[0] for place in places if place is not None}


def _jobs_of(device: Device) -> tuple[JobUse, ...]:
    jobs: dict[int, JobUse] = {}
    for process in value_or(device.processes, ()):
        number = process.slurm_job_id
        if isinstance(number, Missing):
            continue
        known = jobs.get(number)
        if known is None or isinstance(known.user, Missing):
            jobs[number] = JobUse(number, process.user)
    return tuple(jobs[number] for number in sorted(jobs))


class _Finder:
    """The GPU that a device plugin's id means: its UUID, GPU instance and share, where it names them."""

    def __init__(self, by_uuid: Mapping[str, Device]) -> None:
        self._by_uuid = by_uuid
        self._by_index = {device.id.nvml_index: uuid for uuid, device in by_uuid.items()}
        self._by_mig = {
            instance.uuid: (uuid, instance.gpu_instance_id)
            for uuid, device in by_uuid.items()
            for instance in value_or(device.mig_instances, ())
        }

    def find(self, device_id: str) -> tuple[str, int | None, str | None] | None:
        """The place of that id; None where it is none of these GPUs'."""
        whole, replica = _without_share(device_id)
        if whole in self._by_uuid:
            return whole, None, replica
        if whole in self._by_mig:
            uuid, instance = self._by_mig[whole]
            return uuid, None if isinstance(instance, Missing) else instance, replica
        old, named = _OLD_MIG.fullmatch(whole), _BY_NAME.fullmatch(whole)
        if old is not None and old[1] in self._by_uuid:
            return old[1], int(old[2]), replica
        if named is not None and int(named[1]) in self._by_index:
            return self._by_index[int(named[1])], None if named[2] is None else int(named[2]), replica
        return None


def _without_share(device_id: str) -> tuple[str, str | None]:
    for mark in _SHARES:
        whole, found, share = device_id.partition(mark)
        if found:
            return whole, share
    return device_id, None


def _order(use: PodUse) -> tuple[object, ...]:
    return (
        -1 if use.gpu_instance_id is None else use.gpu_instance_id,
        use.namespace,
        use.pod,
        use.container,
        use.replica or "",
    )
