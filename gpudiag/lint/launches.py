"""The commands in a shell script or a Slurm batch script that start ranks on machines."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpudiag.lint.reader import Line

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0"})  # noqa: S104 - looked for
_WORD = re.compile(r"[^\s\"'`;|&()]+")
_DIRECTIVE = re.compile(r"^\s*#SBATCH\s+(.*)$")
_ASSIGNED = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
_VARIABLE = re.compile(r"^\$\{?([A-Za-z_]\w*)(?::?-([^}]*))?\}?$")
_SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus", "c": "cpus-per-task"}
# What takes a value behind a blank, of srun and sbatch; all others of interest have a `=`.
_SLURM = frozenset(
    "nodes ntasks ntasks-per-node gpus gpus-per-node gpus-per-task gres tasks-per-node cpus-per-task".split()
)
_FLAGS_WITHOUT_VALUE = frozenset({"standalone", "no-python", "m", "module", "run-path"})


@dataclass(frozen=True, slots=True)
class Launch:
    """One command that starts ranks: its line, torchrun's options, and those of the srun before it."""

    line: Line  # in which the launcher's name stands
    options: dict[str, str]
    places: dict[str, Line]  # of the options
    under: str | None  # srun, mpirun, ssh ..: what runs it on machines; None where the shell itself does
    under_options: dict[str, str]


@dataclass(frozen=True, slots=True)
class LaunchScript:
    """The launch settings in a script: directives, variables, and the launch commands."""

    directives: dict[str, str] = field(default_factory=dict)
    variables: dict[str, tuple[str, Line]] = field(default_factory=dict)
    launches: tuple[Launch, ...] = ()
    text: str = ""

    def number(self, given: str | None) -> int | None:
        """A number of machines, ranks or GPUs; None where the script sets none. Of `1:4`, the larger one."""
        given = self.value(given)
        if given is None:
            return None
        parts = [part for part in given.split(":") if part]
        return int(parts[-1]) if parts and all(part.isdecimal() for part in parts) else None

    def value(self, given: str | None, depth: int = 4) -> str | None:
        """The word with its variable replaced; None where the script does not set the variable."""
        found = _VARIABLE.match(given) if given is not None else None
        if given is None or found is None or depth == 0:
            return None if given is None or "$" in given else given
        name, default = found[1], found[2]
        if name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
            return self.directives.get("nodes")
        if name in self.variables and self.variables[name][0].strip("\"'") != given:
            return self.value(self.variables[name][0].strip("\"'"), depth - 1)
        return self.value(default, depth - 1) if default else None

    def tasks_per_node(self, launch: Launch) -> int | None:
        """How many tasks a launch's srun starts on each machine; None where the script does not set it."""
        options = {**self.directives, **launch.under_options}
        each = self.number(options.get("ntasks-per-node") or options.get("tasks-per-node"))
        if each is not None:
            return each
        tasks, nodes = self.number(options.get("ntasks")), self.number(options.get("nodes"))
        return tasks // nodes if tasks is not None and nodes and tasks >= nodes else None

    def gpus_per_node(self, launch: Launch) -> int | None:
        """How many GPUs a launch has on each machine; None where the script does not set it."""
        visible = re.search(r"^\s*CUDA_VISIBLE_DEVICES=[\"']?(\d+(?:,\d+)*)[\"']?\s", launch.line.text)
        if visible:
            return visible[1].count(",") + 1
        options = {**self.directives, **launch.under_options}
        for name in ("gpus-per-node", "gres"):
            text = self.value(options.get(name)) or ""
            found = re.search(r"(?:^|gpu:(?:[\w.-]+:)?|[\w.-]+:)(\d+)(?:,|$)", text)
            if found:
                return int(found[1])
        return None


def read_launches(lines: Sequence[Line]) -> LaunchScript:
    """The launches in the lines of a shell script, or of a page or notebook that shows them."""
    directives: dict[str, str] = {}
    variables: dict[str, tuple[str, Line]] = {}
    launches: list[Launch] = []
    for logical in _logical_lines(lines):
        text = logical[0].text
        directive = _DIRECTIVE.match(text)
        if directive:
            directives |= _options([(word, logical[0]) for word in directive[1].split()], _SLURM)[0]
            continue
        if text.lstrip().startswith("#"):
            continue
        assigned = _ASSIGNED.match(text)
        if assigned and " " not in assigned[2].strip().split("#")[0].strip().strip("\"'"):
            variables[assigned[1]] = (assigned[2].split(" #")[0].strip(), logical[0])
        elif assigned:
            variables.setdefault(assigned[1], (assigned[2].strip(), logical[0]))
        launches += _launches_in(logical)
    return LaunchScript(directives, variables, tuple(launches), "\n".join(line.text for line in lines))


def _logical_lines(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """The lines of each command: one that ends with a backslash continues in the next."""
    held: list[Line] = []
    for line in lines:
        held.append(line)
        if not line.text.rstrip().endswith("\\"):
            yield held
            held = []
    if held:
        yield held


def _launches_in(logical: list[Line]) -> Iterator[Launch]:
    words = [
        (word.replace("\\", ""), line)
        for line in logical
        for word in _WORD.findall(line.text)
        if word != "\\"
    ]
    for place, (word, line) in enumerate(words):
        name = word.rsplit("/", 1)[-1]
        is_module = (
            word in ("torch.distributed.run", "torch.distributed.launch")
            and place > 0
            and words[place - 1][0] == "-m"
        )
        if name != "torchrun" and not is_module:
            continue
        options, places = _options(words[place + 1 :], None)
        before = [text.rsplit("/", 1)[-1] for text, _ in words[:place]]
        runner = next(
            (w for w in reversed(before) if w in ("srun", "mpirun", "mpiexec", "ssh", "pdsh", "clush")), None
        )
        under: dict[str, str] = {}
        if runner is not None:
            start = len(before) - 1 - before[::-1].index(runner)
            under, _ = _options(words[start + 1 : place], _SLURM)
        yield Launch(line, options, places, runner, under)


def _options(
    words: Sequence[tuple[str, Line]], valued: frozenset[str] | None
) -> tuple[dict[str, str], dict[str, Line]]:
    """The options of a command (`--nnodes=2`, `--nnodes 2`) before its script, each with its line."""
    options: dict[str, str] = {}
    places: dict[str, Line] = {}
    waiting: str | None = None
    for word, line in words:
        if word.startswith("-") and not word[1:2].isdecimal():
            name, equals, value = word.lstrip("-").partition("=")
            name = _SHORT.get(name, name.replace("_", "-")) if len(name) == 1 else name.replace("_", "-")
            places[name] = line
            if equals:
                options[name], waiting = value, None
            elif valued is not None and name not in valued:
                waiting = None
            else:
                options[name] = ""
                waiting = None if name in _FLAGS_WITHOUT_VALUE else name
        elif waiting is not None:
            options[waiting], waiting = word, None
        elif valued is None:
            if word.startswith("$"):
                places["$"] = line  # options, perhaps
            break  # the script, and what follows is its own
    return options, places
