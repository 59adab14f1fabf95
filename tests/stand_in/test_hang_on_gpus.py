"""`gpudiag hang` on jobs under torchrun whose ranks spin in cuStreamSynchronize: every kind of hang, by turns
with two and four ranks.

`python -m benchmarks.hang_matrix --gpus` has all of it, with healthy jobs; recorded jobs of real GPUs are
judged in tests/unit/checks/job/test_hangs_on_gpus.py.
"""

import pytest

from benchmarks.hang_kinds import GPU_KINDS, GpuKind
from benchmarks.hang_matrix import try_gpu_kind

pytestmark = [pytest.mark.stand_in, pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(400)]
_LOOKS = 4  # a busy machine may look too early, and says so; the job hangs as long
# Without the healthy one: on a busy machine its 40 seconds may be over before it is looked at.
HANGS = [kind for kind in GPU_KINDS if kind.mode != "evaluate"]


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [(kind, 2 + 2 * (n % 2)) for n, kind in enumerate(HANGS)],
    ids=lambda one: getattr(one, "mode", one),
)
def test_a_hang_on_gpus_is_named_with_rank_line_and_reason(
    extension: object, kind: GpuKind, ranks: int
) -> None:
    answers = try_gpu_kind(kind, ranks, _LOOKS, until_right=True)
    assert answers[-1][0] == "right"
