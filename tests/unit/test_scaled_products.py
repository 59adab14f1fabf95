"""Products of 8-bit and 4-bit floats: what a processor computes is right, and what it cannot is a reason."""

from dataclasses import dataclass, field
from typing import Any

import torch

from gpudiag.bandwidth.scaled_products import product_of
from gpudiag.model.active import FLOAT4, FLOAT8, AbsentProduct
from gpudiag.model.reading import NOT_ASKED

SIZE = 64
CPU = torch.device("cpu")


@dataclass
class Bench:
    """A rank on a processor."""

    is_cuda: bool = False
    device: torch.device = CPU
    rank: int = 3
    device_uuid: Any = NOT_ASKED
    emitted: list[Any] = field(default_factory=list)

    def emit(self, kind: str, result: Any) -> None:
        self.emitted.append((kind, result))


def test_a_product_of_8_bit_floats_is_that_of_the_numbers_that_they_hold():
    bench = Bench()
    product = product_of(bench, FLOAT8, SIZE)
    assert product is not None
    generator = torch.Generator().manual_seed(7)
    left, right = (
        torch.randn(SIZE, SIZE, generator=generator).to(torch.float8_e4m3fn).float() for _ in range(2)
    )
    # Sums of 64 products, rounded to 8 bits of mantissa.
    torch.testing.assert_close(product().float(), left @ right.t(), rtol=2**-8, atol=0.05)
    assert bench.emitted == []


def test_a_processor_has_no_4_bit_floats_and_the_reason_is_emitted():
    bench = Bench()
    assert product_of(bench, FLOAT4, SIZE) is None
    ((kind, absent),) = bench.emitted
    assert kind == "absent_products"
    assert isinstance(absent, AbsentProduct)
    assert (absent.dtype, absent.rank) == (FLOAT4, 3)
    assert absent.reason == "torch has no float4 products for processors"
