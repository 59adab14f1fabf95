"""Python's reader of TOML; for Python 3.10, which has none, the package that it was made from."""

import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    try:
        import tomli as tomllib
    except (
        ModuleNotFoundError
    ):  # ranks run in interpreters of users, where gpudiag is only lent: pip brings a copy
        from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

__all__ = ["tomllib"]
