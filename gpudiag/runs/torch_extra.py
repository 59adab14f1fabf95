"""The `torch` extra, which everything that runs on ranks needs: there, or one sentence that says how."""

from importlib.util import find_spec

from gpudiag.errors import UsageError

_HINT = (
    "pip install 'gpudiag[torch]'; without a GPU, install PyTorch's CPU build first, "
    "by the command that pytorch.org shows under Start Locally for CPU"
)


def require_torch(command: str) -> None:
    """Nothing, where this interpreter has torch; it is looked for and not imported.

    Raises:
        UsageError: it has none.
    """
    if find_spec("torch") is None:
        raise UsageError(f"torch is not installed, and {command} runs on it", hint=_HINT)
