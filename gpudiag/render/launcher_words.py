"""Who started the ranks, as a person says it."""

from gpudiag.model.reading import Missing, Reading

# The names in documents are those of `gpudiag.ranks.environment.Launcher`.
_WORDS = {
    "spawn": "gpudiag",
    "variables": "whoever set RANK",
    "explicit": "--rank",
}


def say_launcher(launcher: Reading[str]) -> str:
    """`ranks by gpudiag`, `ranks by torchrun`; what started no ranks has no launcher."""
    return "no ranks" if isinstance(launcher, Missing) else f"ranks by {_WORDS.get(launcher, launcher)}"
