"""`gpudiag list --free N`: which GPUs to start on, or why there are not enough."""

from gpudiag.checks.availability import Candidate
from gpudiag.model.device import Snapshot
from gpudiag.model.reading import Missing
from gpudiag.render.devices_text import simulated_lines
from gpudiag.render.style import wrapped


def render_free(snapshot: Snapshot, chosen: tuple[Candidate, ...]) -> str:
    """The chosen GPUs, one a line with the UUID, then how to use them."""
    lines = simulated_lines(snapshot)
    lines += [f"GPU {candidate.label:5} {_uuid(candidate)}" for candidate in chosen]
    lines += [f"Use them: CUDA_VISIBLE_DEVICES=$(gpudiag list --free {len(chosen)} --ids) COMMAND"]
    return "\n".join(lines) + "\n"


def render_ids(chosen: tuple[Candidate, ...]) -> str:
    """The UUIDs as CUDA_VISIBLE_DEVICES takes them: no order of ordinals can mix them up."""
    return ",".join(_uuid(candidate) for candidate in chosen) + "\n"


def render_too_few(wanted: int, candidates: tuple[Candidate, ...]) -> str:
    """How many are free of those wanted, and what speaks against each of the others."""
    free = sum(candidate.free for candidate in candidates)
    lines = [f"{free} of {wanted} wanted GPUs {'is' if free == 1 else 'are'} free"]
    for candidate in candidates:
        if not candidate.free:
            lines += wrapped(
                f"GPU {candidate.label}: {', '.join(candidate.against)}", first="  ", indent="    "
            )
    return "\n".join(lines)


def _uuid(candidate: Candidate) -> str:
    return "" if isinstance(candidate.uuid, Missing) else candidate.uuid
