"""Python's reader of TOML; for Python 3.10, which has none, the package that it was made from."""

import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["tomllib"]
