"""What a rank finds out about itself before it measures."""

from dataclasses import dataclass

from gpudiag.model.reading import Reading


@dataclass(frozen=True, slots=True)
class RankFacts:
    """The software and the device that one rank runs on."""

    torch_version: str
    nccl_version: Reading[str]
    device_uuid: Reading[str]
