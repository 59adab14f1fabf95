"""Accept the anonymous form of a `make gpu` that somebody attached to an issue: FILE.

    python -m tools.accept_confirmation anonymous.json           # check it, and add it to the repository
    python -m tools.accept_confirmation --check anonymous.json   # check it, and write nothing

It is refused, with every reason, where it is no such document or is not whole, holds anything that may not
leave a machine, is simulated, contradicts itself, or shows what the table has already. Accepted, the machine
is kept in tests/corpus/machines, and its row in docs/gpu-paths.md and README.md. Exit status: 0 accepted, 1
refused, 2 usage.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import gpudiag
from gpudiag.errors import UsageError
from gpudiag.model.codec import decode, dumps, encode, to_document
from gpudiag.model.finding import Outcome, worst
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.gpu_models import find_memory, find_model
from gpudiag.units import GIB
from tools.confirm_on_gpu.anonymous import digest_of, without_private
from tools.confirm_on_gpu.markdown import confirmed_row, gpu_words
from tools.confirm_on_gpu.plan import LOOK
from tools.confirm_on_gpu.public_text import LEFT_OUT
from tools.confirm_on_gpu.reading import is_wrong
from tools.confirm_on_gpu.report import AnonymousConfirmation
from tools.write_readme import TABLE_PAGE, confirmed_rows, write_readme

ROOT = Path(__file__).parents[1]
CORPUS = Path("tests/corpus/machines")
_MOST_BYTES = 16 * 1024**2
_LEAST_TOGETHER = {"torch": (2, 4), "python": (3, 10)}
# What a capability's major number is of, as NVML has both.
_CAPABILITIES = {
    "pascal": ("6",),
    "volta": ("7.0", "7.2"),
    "turing": ("7.5",),
    "ampere": ("8.0", "8.6", "8.7"),
    "ada": ("8.9",),
    "hopper": ("9",),
    "blackwell": ("10", "11", "12"),
}
_HANGS, _READINGS, _PREFLIGHT = "hang_jobs", "readings", "preflight"


def read_form(path: Path) -> AnonymousConfirmation:
    """The form in a file, which may be packed by gzip.

    Raises:
        UsageError: it cannot be read, is no such document, or has a field that this gpudiag does not know.
    """
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            with gzip.open(path) as file:
                data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise UsageError(f"it has more than {_MOST_BYTES // 1024**2} MiB")
        document = json.loads(data)
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise UsageError(f"it cannot be read: {error}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != AnonymousConfirmation.SCHEMA:
        hint = "the folder of the report has it as anonymous.json"
        raise UsageError(f"its schema is {schema!r}, and not {AnonymousConfirmation.SCHEMA}: {hint}")
    form = decode(AnonymousConfirmation, document)
    if extra := list(_additions(document, to_document(form))):
        raise UsageError(f"it has what this form does not have: {', '.join(extra[:5])}")
    return form


def _additions(given: Any, known: Any, place: str = "") -> Iterator[str]:
    """Where the document holds more, or other, than what was read from it."""
    if isinstance(given, dict) and isinstance(known, dict):
        for name, value in given.items():
            yield from _additions(value, known.get(name), f"{place}.{name}" if place else name)
    elif isinstance(given, list) and isinstance(known, list) and len(given) == len(known):
        for number, (one, other) in enumerate(zip(given, known, strict=True)):
            yield from _additions(one, other, f"{place}[{number}]")
    elif given != known:
        yield place


# --- why it is refused


def find_reasons(form: AnonymousConfirmation, root: Path = ROOT) -> list[str]:
    """Every reason to refuse the form; none where it can be accepted."""
    return [reason for look in _LOOKS for reason in look(form)] + list(_already_there(form, root))


def _not_whole(form: AnonymousConfirmation) -> Iterator[str]:
    if form.digest != digest_of(form):
        yield "its digest is not that of its content: it was changed, or is not whole; ask for the file again"
    if not form.finished:
        yield "it is of a run that did not finish"


def _private(form: AnonymousConfirmation) -> Iterator[str]:
    places = list(_additions(encode(form), encode(without_private(form))))
    if places:
        yield (
            f"it holds what may not leave a machine, in {', '.join(places[:5])}:"
            " delete the attachment, ask for a new one"
        )


def _simulated(form: AnonymousConfirmation) -> Iterator[str]:
    torch = form.torch_version or ""
    if form.simulated or form.machine.simulated is not None or torch.endswith("stand.in"):
        yield "it is of a simulated machine, which confirms no hardware"


def _versions(form: AnonymousConfirmation) -> Iterator[str]:
    named = {"driver": form.driver_version, "gpudiag": form.gpudiag_version, "Python": form.python_version}
    unnamed = [name for name, version in named.items() if version in (None, LEFT_OUT)]
    if unnamed:
        yield (
            f"it has no version of {', '.join(unnamed)}: none was read, or it has a form"
            " that public_text.py does not know"
        )
        return
    newest = _numbers(gpudiag.__version__)
    if _numbers(form.gpudiag_version)[:3] > newest[:3]:
        yield (
            f"gpudiag {form.gpudiag_version} is newer than this one,"
            f" {gpudiag.__version__}: accept it with that"
        )
    if _numbers(form.python_version)[:2] < _LEAST_TOGETHER["python"]:
        yield f"gpudiag does not run with Python {form.python_version}"
    if form.torch_version and _numbers(form.torch_version)[:2] < _LEAST_TOGETHER["torch"]:
        yield f"gpudiag does not test torch {form.torch_version}"
    machine, torch = form.machine, form.machine.torch
    pairs = [
        ("driver", form.driver_version, machine.driver_version),
        ("driver of the kernel", form.driver_version, machine.machine.kernel_driver_version),
    ]
    if not isinstance(torch, Missing):
        pairs += [
            ("torch", form.torch_version, torch.version),
            ("CUDA of torch", form.cuda_runtime_version, torch.cuda_runtime_version),
        ]
        built = re.search(r"\+cu(\d+)(\d)$", torch.version)
        if built and form.cuda_runtime_version not in (None, f"{built[1]}.{built[2]}"):
            yield (
                f"torch {torch.version} is built for CUDA {built[1]}.{built[2]},"
                f" and not {form.cuda_runtime_version}"
            )
    for name, stated, recorded in pairs:
        if not isinstance(recorded, Missing) and stated != recorded:
            yield f"the {name} is {stated} in the report and {recorded} in the machine's record"
    nvml, driver = machine.nvml_version, machine.driver_version
    if not isinstance(nvml, Missing) and not isinstance(driver, Missing) and nvml.partition(".")[2] != driver:
        yield f"NVML {nvml} is not of driver {driver}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0].partition(" ")[0])))


def _time(form: AnonymousConfirmation) -> Iterator[str]:
    if form.day > date.today().isoformat():
        yield f"its day, {form.day}, has not come yet"
    if form.day != f"{form.machine.taken_at:%Y-%m-%d}" and form.seconds < 3600:
        recorded = f"{form.machine.taken_at:%Y-%m-%d}"
        if abs((date.fromisoformat(recorded) - date.fromisoformat(form.day)).days) > 1:
            yield f"the report is of {form.day}, and the machine was recorded on {recorded}"
    longest = max((step.seconds for step in form.steps), default=0.0)
    if longest > form.seconds + 1:
        yield f"a step took {longest:.0f} s, and the whole run {form.seconds:.0f} s"


def _gpus(form: AnonymousConfirmation) -> Iterator[str]:
    if not form.machine.devices:
        yield "it has no GPU"
    for number, device in enumerate(form.machine.devices):
        if isinstance(device.name, Missing):
            yield (
                f"GPU {number} has no name: a name that gpudiag does not know is left out;"
                " add its words to public_text.py"
            )
            continue
        model, memory = find_model(device.name), find_memory(device.name)
        capability, total = device.compute_capability, device.memory_total_bytes
        if (
            model is not None
            and not isinstance(capability, Missing)
            and capability != model.compute_capability
        ):
            yield (
                f"GPU {number}, {device.name}, has compute capability"
                f" {model.compute_capability}, and not {capability}"
            )
        known = _CAPABILITIES.get(str(device.architecture))
        if known and not isinstance(capability, Missing) and not capability.startswith(known):
            yield f"GPU {number} is of {device.architecture}, and has compute capability {capability}"
        if (
            memory is not None
            and not isinstance(total, Missing)
            and not 0.85 < total / (memory.gib * GIB) < 1.15
        ):
            yield f"GPU {number}, {device.name}, has {memory.gib} GiB of memory, and not {total / GIB:.0f}"
        used = device.memory_used_bytes
        if not isinstance(used, Missing) and not isinstance(total, Missing) and used > total:
            yield f"GPU {number} uses {used} of {total} bytes"


def _outcomes(form: AnonymousConfirmation) -> Iterator[str]:
    names = [step.name for step in form.steps]
    outcomes = {step.name: step.outcome for step in form.steps}
    if not names or names[0] != LOOK.name or len(set(names)) != len(names):
        yield f"its steps are not those of a run, which begins with `{LOOK.name}` and has each once"
    if form.outcome is not worst(tuple(step.outcome for step in form.steps)):
        yield f"its outcome is {form.outcome.value}, and not the worst of its steps'"
    ran = (Outcome.PASS, Outcome.WARN, Outcome.FAIL)
    rows: dict[str, Sequence[object]] = {
        _READINGS: form.readings,
        _PREFLIGHT: form.checks,
        _HANGS: form.hangs,
    }
    for name, shown in rows.items():
        if outcomes.get(name) in (Outcome.PASS, Outcome.WARN) and not shown:
            yield f"step {name} is {outcomes[name].value} and shows nothing"
        if shown and outcomes.get(name) not in (*ran, Outcome.ERROR):
            yield f"step {name} did not run and shows {len(shown)} rows"
    wrong = [one.reading for one in form.readings if is_wrong(one)]
    if wrong and outcomes.get(_READINGS) is Outcome.PASS:
        yield f"step {_READINGS} is pass, and these are not as nvidia-smi has them: {', '.join(wrong[:5])}"
    if any(one.right is False for one in form.hangs) and outcomes.get(_HANGS) is Outcome.PASS:
        yield f"step {_HANGS} is pass, and a job was judged wrong"
    if form.checks and outcomes.get(_PREFLIGHT) in ran:
        judged = worst(tuple(check.outcome for check in form.checks))
        if judged is not outcomes[_PREFLIGHT]:
            yield f"step {_PREFLIGHT} is {outcomes[_PREFLIGHT].value}, and its checks are {judged.value}"


def _checks(form: AnonymousConfirmation) -> Iterator[str]:
    names = [check.check for check in form.checks]
    if len(set(names)) != len(names):
        yield "a check is in it twice"
    for check in form.checks:
        if check.outcome is Outcome.PASS and check.codes:
            yield f"{check.check} is pass, and has findings: {', '.join(check.codes)}"
        if check.outcome in (Outcome.FAIL, Outcome.WARN) and not check.codes:
            yield f"{check.check} is {check.outcome.value}, and has no finding"
        if both := sorted(set(check.read) & check.missing.keys()):
            yield f"{check.check} read {', '.join(both)}, and did not"
        absent = [name for name in check.read if _is_nowhere(form, name)]
        if absent:
            yield f"{check.check} read {', '.join(absent)}, which no GPU of the machine supports"


def _is_nowhere(form: AnonymousConfirmation, reading: str) -> bool:
    values = [getattr(device, reading, None) for device in form.machine.devices]
    return bool(values) and all(
        isinstance(value, Missing) and value.reason is MissingReason.NOT_SUPPORTED for value in values
    )


def _speeds(form: AnonymousConfirmation) -> Iterator[str]:
    for speed in form.speeds:
        if any(value <= 0 for value in (*speed.gpudiag, *speed.loop, *speed.best)):
            yield f"{speed.name} has a speed of 0 or less"
        elif speed.gpudiag and speed.loop and speed.ratio is not None:
            ratio = statistics.median(speed.gpudiag) / statistics.median(speed.loop)
            if abs(ratio - speed.ratio) > 0.001:
                yield f"{speed.name} has the ratio {speed.ratio}, and its speeds have {ratio:.4f}"


def _already_there(form: AnonymousConfirmation, root: Path) -> Iterator[str]:
    for path in sorted((root / CORPUS).glob("*/confirmation.json.gz")):
        if read_form(path).digest == form.digest:
            yield f"it is there already: {path.relative_to(root)}"
            return
    ours = _key(confirmed_row(form))
    if any(_key(row) == ours for row in confirmed_rows((root / TABLE_PAGE).read_text())):
        yield f"{TABLE_PAGE} has these GPUs with this driver, torch, NCCL and gpudiag already"


def _key(row: str) -> tuple[str, ...]:
    """What makes a row another one: all but its day and its results."""
    return tuple(cell.strip() for cell in row.split("|")[2:7])


_LOOKS: tuple[Callable[[AnonymousConfirmation], Iterator[str]], ...] = (
    _not_whole,
    _private,
    _simulated,
    _versions,
    _time,
    _gpus,
    _outcomes,
    _checks,
    _speeds,
)


# --- adding it


def add_to_repository(form: AnonymousConfirmation, root: Path = ROOT) -> list[Path]:
    """Keep the form and its machine, and write its row; the files that were written."""
    folder = _new_folder(form, root / CORPUS)
    folder.mkdir(parents=True)
    written = []
    for name, noun in (("confirmation", form), ("machine", form.machine)):
        written.append(folder / f"{name}.json.gz")
        # No time of packing: the same form is the same file.
        written[-1].write_bytes(gzip.compress(f"{dumps(noun)}\n".encode(), mtime=0))
    readme = root / CORPUS / "README.md"
    reader = "tests/scenarios/test_confirmed_machines.py"
    rows = [
        f"| {folder.name}/confirmation.json.gz | the anonymous form of `make gpu`, {form.day} | {reader} |\n",
        (
            f"| {folder.name}/machine.json.gz | the machine in it,"
            f" `gpudiag list --sources all --json` | {reader} |\n"
        ),
    ]
    readme.write_text(readme.read_text() + "".join(rows))
    page = root / TABLE_PAGE
    text = page.read_text()
    last = confirmed_rows(text)[-1]
    page.write_text(text.replace(last, f"{last}\n{confirmed_row(form)}", 1))
    write_readme(root, ("confirmed",))
    return [*written, readme, page, root / "README.md"]


def _new_folder(form: AnonymousConfirmation, corpus: Path) -> Path:
    """A folder named by the GPUs and the driver: `h100-80gb-hbm3-x8-580.159.04`."""
    words = re.sub(r"[^a-z0-9.]+", "-", gpu_words(form.gpu_names).lower().replace("nvidia ", ""))
    count, _, name = words.strip("-").partition("x-")
    stem = f"{name}-x{count}-{form.driver_version}"
    names = (stem, *(f"{stem}-{number}" for number in range(2, 1000)))
    return next(corpus / name for name in names if not (corpus / name).exists())


def main(arguments: Iterable[str], root: Path = ROOT) -> int:
    """The exit status: 0 accepted, 1 refused, 2 usage."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.accept_confirmation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true", help="check it, and write nothing")
    options = parser.parse_args(list(arguments))
    try:
        form = read_form(options.file)
        reasons = find_reasons(form, root)
    except UsageError as error:
        print(f"{options.file}: refused: {error}", file=sys.stderr)
        return 1
    if reasons:
        print(f"{options.file}: refused:", *reasons, sep="\n  ", file=sys.stderr)
        return 1
    print(confirmed_row(form))
    if options.check:
        print("it can be accepted; nothing was written")
        return 0
    for path in add_to_repository(form, root):
        print(f"written: {path.relative_to(root)}")
    print(
        "next: python -m pytest tests/scenarios/test_confirmed_machines.py;"
        " then what docs/gpu.md has behind it"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
