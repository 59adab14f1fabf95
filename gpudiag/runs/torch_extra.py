"""The `torch` extra, which everything that runs on ranks needs: there, or one sentence that says how."""

from gpudiag.errors import UsageError
from gpudiag.runs.interpreters import absent_modules

_HINT = (
    "pip install 'gpudiag[torch]'; without a GPU, install PyTorch's CPU build first, "
    "by the command that pytorch.org shows under Start Locally for CPU"
)


def require_torch(command: str, python: str | None = None) -> None:
    """Nothing, where the interpreter (this one by default) has torch; it is looked for and not imported.

    Raises:
        UsageError: it has none, or it is no Python that runs.
    """
    if not absent_modules(("torch",), python):
        return
    if python is None:
        raise UsageError(f"torch is not installed, and {command} runs on it", hint=_HINT)
    raise UsageError(
        f"torch is not installed for --python {python}, and {command} runs on it",
        hint=f"name the interpreter of your job, or: {python} -m pip install torch",
    )
