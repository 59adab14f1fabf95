"""Where the documentation is."""

from importlib.metadata import PackageNotFoundError, metadata

_IN_THE_REPOSITORY = "docs/index.md in gpudiag's repository (`make docs` builds a site of it)"


def documentation() -> str:
    """The address of the pages, as set in pyproject.toml by who publishes gpudiag; else their place."""
    try:
        urls = metadata("gpudiag").get_all("Project-URL") or []
    except PackageNotFoundError:  # run from a folder that is only on sys.path
        return _IN_THE_REPOSITORY
    named = dict(url.split(", ", 1) for url in urls)
    return str(named.get("Documentation", _IN_THE_REPOSITORY))
