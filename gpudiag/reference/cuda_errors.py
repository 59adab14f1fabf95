"""Every error of CUDA, and the expressions by which the known failures recognise them in a log."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from gpudiag.reference.tables import read_table

_DRIVER, _RUNTIME = "CUDA_ERROR_", "cudaError"


@dataclass(frozen=True, slots=True)
class CudaError:
    """One error of CUDA; a name or text is empty where an API has none."""

    number: int
    driver_name: str  # CUDA_ERROR_NO_DEVICE
    runtime_name: str  # cudaErrorNoDevice
    text: str  # what cudaGetErrorString returns


@cache
def cuda_errors() -> dict[int, CudaError]:
    """Every error, by number."""
    return {row[0]: CudaError(*row) for row in read_table("cuda_errors.toml")["errors"]}


def cuda_error_source() -> str:
    """The headers and the library that the table is read from."""
    return str(read_table("cuda_errors.toml")["source"])


def expressions_of(numbers: tuple[int, ...], *, in_nccl: bool = True) -> tuple[str, ...]:
    """Regular expressions for the lines that report one of these errors: by name, number or text.

    A text alone proves nothing ("invalid argument"), so it counts behind the words of torch and NCCL; without
    `in_nccl` behind those of torch alone, since the failed call of NCCL explains more than a general error.

    Raises:
        KeyError: CUDA has no error of that number.
    """
    errors = [cuda_errors()[number] for number in numbers]
    number = f"(?:{'|'.join(str(error.number) for error in errors)})"
    text = _any_of(error.text for error in errors)
    by_name = (
        (_DRIVER, _any_of(error.driver_name.removeprefix(_DRIVER) for error in errors)),
        (_RUNTIME, _any_of(error.runtime_name.removeprefix(_RUNTIME) for error in errors)),
    )
    of_nccl = (rf"Cuda failure:? {number}\b", *((rf"Cuda failure '{text}'",) if text else ()))
    return (
        *(rf"{prefix}{names}\b" for prefix, names in by_name if names),
        rf"CUDA error:? {number}(?=$|[:;,.]| -)",
        *(
            (
                rf"CUDA error:? {text}(?! [a-z])",
                rf"Cuda Runtime \({text}\)",
                rf"Triton Error \[CUDA\]: {text}(?! [a-z])",
                *(rf"{word} (?:error|failure) \S+:\d+ '{text}'" for word in ("CUDA", "Cuda")),
                rf"^Error {text} at line \d+ in file",
                rf"cudaCheckError\(\) failed ?: ?{text}",
                rf"CUDA runtime error in \S.*: {text} \(",
            )
            if text
            else ()
        ),
        *(of_nccl if in_nccl else ()),
        rf"cuda runtime error \({number}\)",
        rf"cudaGetDeviceCount\(\).*Error {number}: ",
    )


def find_cuda_error(name: str) -> CudaError | None:
    """The error of a name of either API (`CUDA_ERROR_NO_DEVICE`, `cudaErrorNoDevice`); None if unknown."""
    return next(
        (
            error
            for error in cuda_errors().values()
            if name and name in (error.driver_name, error.runtime_name)
        ),
        None,
    )


def _any_of(words: Iterable[str]) -> str:
    """An expression for one of these words; empty where there is none."""
    known = [re.escape(word) for word in words if word]
    return f"(?:{'|'.join(known)})" if known else ""
