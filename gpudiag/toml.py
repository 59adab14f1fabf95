"""Python's reader of TOML; for Python 3.10, which has none, the package that it was made from."""

import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    try:
        import tomli as tomllib
    except ModuleNotFoundError as absent:
        # Ranks run in interpreters of users, to which gpudiag is only lent: their pip brings a copy.
        try:
            from pip._vendor import tomli as tomllib  # type: ignore[no-redef]
        except ImportError:
            raise absent from None

__all__ = ["tomllib"]
