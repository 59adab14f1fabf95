"""`python -m tests.cuda_stand_in SCENARIO [NAME=VALUE ...] -- COMMAND`: a command where it finds GPUs."""

import subprocess
import sys

from gpudiag.errors import UsageError
from tests.cuda_stand_in.build import CannotBuildError
from tests.cuda_stand_in.machine import command_on, open_machine


def main(arguments: list[str]) -> int:
    """The exit status of the command."""
    if "--" not in arguments or arguments.index("--") in (0, len(arguments) - 1):
        print(__doc__, file=sys.stderr)
        return 2
    cut = arguments.index("--")
    scenario, *settings = arguments[:cut]
    variables = dict(setting.split("=", 1) for setting in settings)
    try:
        with open_machine(scenario, variables) as environment:
            command = command_on(environment, arguments[cut + 1 :])
            return subprocess.run(command, env=environment, check=False).returncode
    except (CannotBuildError, UsageError) as error:
        print(f"cuda_stand_in: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
