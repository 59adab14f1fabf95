"""Start the template, or with --fork-server that, in any interpreter, even one without gpudiag.

Run as a file. Only the package `gpudiag` is made importable, not its neighbours. It needs no newer Python
than 3.6, so that an old one gets a clear message.
"""

import sys


def _lend_gpudiag(package: str) -> None:
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "gpudiag", package + "/__init__.py", submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None:
        raise ImportError("gpudiag is not at " + package)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpudiag"] = module
    spec.loader.exec_module(module)


def _refuse_old_python(socket_descriptor: str) -> None:
    import json
    import os

    version = ".".join(str(part) for part in sys.version_info[:3])
    os.write(int(socket_descriptor), json.dumps({"kind": "old_python", "version": version}).encode() + b"\n")


if __name__ == "__main__":
    own_folder = __file__.rpartition("/")[0]
    if sys.path[:1] == [own_folder]:
        # The folder of a script comes first by default; its module names are not for everyone.
        del sys.path[0]
    if sys.version_info < (3, 10):  # noqa: UP036 - any interpreter may be named
        _refuse_old_python(sys.argv[2])
    else:
        _lend_gpudiag(own_folder.rpartition("/ranks/")[0])
        if sys.argv[1] == "--fork-server":
            from gpudiag.ranks.rank.fork_server import main

            main(sys.argv[2:])
        else:
            from gpudiag.ranks.rank.template import main

            main(sys.argv[1:])
