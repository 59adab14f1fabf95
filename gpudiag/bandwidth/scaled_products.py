"""Products of 8-bit and 4-bit floats with scales, by torch's own call; or why a device has none.

NVFP4 has a scale of 8 bits for each 16 numbers of a row, two of which share a byte; float8 has one scale for
a whole matrix. Source: torch._scaled_mm in aten/src/ATen/native/cuda/Blas.cpp (torch 2.8 and later).
"""

import re
from collections.abc import Callable
from typing import Any

import torch

from gpudiag.bandwidth.bench import Bench
from gpudiag.bandwidth.memory import WORKSPACE_BYTES, require_free
from gpudiag.model.active import FLOAT4, FLOAT8, AbsentProduct

# CUDA C++ Programming Guide, tensor cores: 8-bit floats from Ada and Hopper on, 4-bit ones from Blackwell on.
_LEAST_CAPABILITY = {FLOAT8: (8, 9), FLOAT4: (10, 0)}
_TORCH_NAME = {FLOAT8: "float8_e4m3fn", FLOAT4: "float4_e2m1fn_x2"}
_NUMBERS_PER_SCALE, _PER_BYTE = 16, 2
_WIDEST_BYTES = 4  # random float32 is what float8 is made from
_MATRICES = 3

_REFUSAL = re.compile(r"CUBLAS_STATUS_NOT_SUPPORTED|only supported|not supported|not implemented")

Product = Callable[[], torch.Tensor]


def product_of(bench: Bench, dtype: str, size: int) -> Product | None:
    """The product of two random square matrices of that scaled dtype; None, with the reason emitted.

    Raises:
        TooLittleMemoryError: a GPU has no room for them.
    """
    why = _why_absent(bench, dtype)
    if why is None:
        require_free(
            bench,
            _MATRICES * size**2 * _WIDEST_BYTES + WORKSPACE_BYTES,
            f" for products of {size} x {size}",
        )
        product = _float8(bench, size) if dtype == FLOAT8 else _float4(bench, size)
        try:
            product()
        except (RuntimeError, ValueError, TypeError) as error:
            why = f"torch {torch.__version__}: {str(error).splitlines()[0]}"
            if isinstance(error, RuntimeError) and not _is_refusal(error):
                raise  # a fault of the device
        else:
            return product
    bench.emit("absent_products", AbsentProduct(dtype, bench.rank, bench.device_uuid, why))
    return None


def _why_absent(bench: Bench, dtype: str) -> str | None:
    if not hasattr(torch, _TORCH_NAME[dtype]) or not hasattr(torch, "_scaled_mm"):
        return f"torch {torch.__version__} does not have {dtype}"
    if not bench.is_cuda:
        return None if dtype == FLOAT8 else f"torch has no {dtype} products for processors"
    capability = torch.cuda.get_device_capability(bench.device)
    least = _LEAST_CAPABILITY[dtype]
    if capability >= least:
        return None
    return (
        f"compute capability {'.'.join(map(str, capability))} has no {dtype}; {'.'.join(map(str, least))} has"
    )


def _is_refusal(error: RuntimeError) -> bool:
    """Whether torch or cuBLAS lacks this product for the device: both report that before they start it."""
    return isinstance(error, NotImplementedError) or bool(_REFUSAL.search(str(error)))


def _float8(bench: Bench, size: int) -> Product:
    generator = torch.Generator(bench.device).manual_seed(7)
    left, right = (
        torch.randn(size, size, device=bench.device, generator=generator).to(torch.float8_e4m3fn)
        for _ in range(2)
    )
    one = torch.ones((), device=bench.device)
    options: dict[str, Any] = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16}
    if bench.is_cuda:
        options["use_fast_accum"] = True  # as forward passes have it, and the published figures
    turned = right.t()  # the second matrix lies column by column
    return lambda: torch._scaled_mm(left, turned, **options)


def _float4(bench: Bench, size: int) -> Product:
    generator = torch.Generator(bench.device).manual_seed(7)
    dtype: torch.dtype = getattr(torch, _TORCH_NAME[FLOAT4])
    left, right = (
        torch.randint(
            256, (size, size // _PER_BYTE), device=bench.device, generator=generator, dtype=torch.uint8
        ).view(dtype)
        for _ in range(2)
    )
    scales = torch.ones(size * size // _NUMBERS_PER_SCALE, device=bench.device).to(torch.float8_e4m3fn)
    turned = right.t()
    return lambda: torch._scaled_mm(left, turned, scale_a=scales, scale_b=scales, out_dtype=torch.bfloat16)
