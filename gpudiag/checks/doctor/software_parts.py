"""The software's parts: torch and NCCL, readers of stacks, the service, frameworks, a compiler, launchers."""

from gpudiag.checks.doctor.inputs import Sight, unread
from gpudiag.model.doctor import DoctorPart, PartState
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.reading_names import explain_missing
from gpudiag.reference.software import describe_nccl

_LAUNCHERS = ("torchrun", "srun", "mpirun", "accelerate", "deepspeed", "horovodrun")
_JOB = "the packages of the job's interpreter"
_SERVICE = ("fastapi", "uvicorn", "httptools")
_WITH_CUDA = "install a build with CUDA, by the command that pytorch.org shows under Start Locally"
_COMPILERS = ("CC", "cc", "gcc", "clang")


def judge_torch(sight: Sight) -> DoctorPart:
    """The torch of the ranks: which build, and whether it fits a machine with or without GPUs."""
    if sight.torch_asked:
        return _judge_asked(sight)
    build = sight.seen.torch
    if isinstance(build, Missing):
        if build.reason is not MissingReason.SOURCE_ABSENT:
            return unread("torch", _JOB, build)
        return DoctorPart("torch", PartState.ABSENT, "it is not installed", sight.install("torch"))
    if not isinstance(build.cuda, Missing):
        return DoctorPart("torch", PartState.WORKS, f"{build.version}, for CUDA {build.cuda}")
    words = f"{build.version}, a build without CUDA"
    if not sight.has_gpu:
        return DoctorPart("torch", PartState.WORKS, words)
    if sight.snapshot.simulated is not None:  # the files are those of the machine that simulates
        return DoctorPart("torch", PartState.WORKS, f"{words}; the simulated one is asked by --deep")
    return DoctorPart("torch", PartState.BROKEN, f"{words}: it uses no GPU of this machine", _WITH_CUDA)


def _judge_asked(sight: Sight) -> DoctorPart:
    """The torch that was imported, and asked what it sees."""
    facts, status = sight.snapshot.torch, sight.snapshot.source("torch")
    if isinstance(facts, Missing):
        absent = facts.reason is MissingReason.SOURCE_ABSENT
        words = status.reason or explain_missing(facts)
        state = PartState.ABSENT if absent else PartState.BROKEN
        return DoctorPart(
            "torch", state, words, sight.install("torch") if absent else "gpudiag list --sources all"
        )
    seconds = "" if isinstance(status.seconds, Missing) else f", answers in {status.seconds:.1f} s"
    words = f"{facts.version}{seconds}"
    if not sight.has_gpu:
        return DoctorPart("torch", PartState.WORKS, words)
    if isinstance(facts.cuda_runtime_version, Missing):
        return DoctorPart("torch", PartState.BROKEN, f"{words}, a build without CUDA", _WITH_CUDA)
    if facts.context_starts is False:
        return DoctorPart("torch", PartState.BROKEN, f"{words}: no CUDA context starts", "gpudiag preflight")
    return DoctorPart("torch", PartState.WORKS, f"{words}, CUDA {facts.cuda_runtime_version}")


def judge_nccl(sight: Sight) -> DoctorPart:
    """NCCL for ranks on GPUs: the library that torch loads if torch was asked, else NVIDIA's package."""
    facts = sight.snapshot.torch
    if sight.torch_asked and not isinstance(facts, Missing) and not isinstance(facts.nccl_version, Missing):
        words = describe_nccl(facts.nccl_version, facts.nccl_built_version, facts.nccl_library)
        return DoctorPart("nccl", PartState.WORKS, words.removeprefix("NCCL "))
    build = sight.seen.torch
    if isinstance(build, Missing):
        if build.reason is not MissingReason.SOURCE_ABSENT:
            return unread("nccl", _JOB, build)
        return DoctorPart("nccl", PartState.NOT_HERE, "it comes with a torch for CUDA")
    if isinstance(build.cuda, Missing):
        return DoctorPart("nccl", PartState.NOT_HERE, "it comes with a torch for CUDA")
    if isinstance(build.nccl, Missing):
        words = "no package of NCCL was seen: torch may have one built in"
        return DoctorPart("nccl", PartState.LIMITED, words, "gpudiag doctor --deep")
    return DoctorPart(
        "nccl", PartState.WORKS, f"the package is {build.nccl}; --deep asks which library is loaded"
    )


def judge_python_stacks(sight: Sight) -> DoctorPart:
    """py-spy, by which `hang` and `run` read Python stacks."""
    return _judge_stack_reader(sight, "python-stacks", "py-spy", "no stack of a rank can be read")


def judge_c_stacks(sight: Sight) -> DoctorPart:
    """pystack, for `hang --native`."""
    return _judge_stack_reader(sight, "c-stacks", "pystack", "`hang --native` shows no C functions")


def _judge_stack_reader(sight: Sight, name: str, program: str, lack: str) -> DoctorPart:
    place = sight.find_program(program)
    if place is not None:
        return DoctorPart(name, PartState.WORKS, f"{program} at {place}")
    absent = DoctorPart(name, PartState.ABSENT, f"{program} is not installed: {lack}", sight.install("hang"))
    return sight.unread_programs(name) or absent


def judge_service(sight: Sight) -> DoctorPart:
    """The packages of `serve`."""
    silent = sight.unread_packages("service")
    if silent is not None:
        return silent
    absent = [name for name in _SERVICE if sight.find_package(name) is None]
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        words = f"{', '.join(absent)} {verb} not installed"
        return DoctorPart("service", PartState.ABSENT, words, sight.install("serve"))
    return DoctorPart(
        "service", PartState.WORKS, ", ".join(f"{name} {sight.find_package(name)}" for name in _SERVICE)
    )


def judge_page(sight: Sight) -> DoctorPart:
    """The web page of `serve`, which is built once."""
    page = sight.seen.page
    if isinstance(page, Missing):
        return unread("web-page", "the page's files", page)
    if not page:
        words = "it is not built: `serve` answers its API and metrics alone"
        return DoctorPart(
            "web-page",
            PartState.ABSENT,
            words,
            "install gpudiag again where npm reaches its packages, or from a wheel, which has the page",
        )
    return DoctorPart("web-page", PartState.WORKS, "built")


def judge_postgres(sight: Sight) -> DoctorPart:
    """The driver for a history in PostgreSQL."""
    found = sight.find_package("psycopg")
    if found is None and (silent := sight.unread_packages("postgres")):
        return silent
    if found is None:
        words = "psycopg is not installed: the history can be in a file alone"
        return DoctorPart("postgres", PartState.ABSENT, words, sight.install("postgres"))
    return DoctorPart("postgres", PartState.WORKS, f"psycopg {found}")


def judge_framework(sight: Sight, name: str) -> DoctorPart:
    """One framework of `train`."""
    packages = sight.seen.job_packages
    if isinstance(packages, Missing):
        return unread(name, _JOB, packages)
    found = packages.get(name)
    if found is None:
        return DoctorPart(name, PartState.ABSENT, "it is not installed", sight.install(name))
    return DoctorPart(name, PartState.WORKS, found)


def judge_compiler(sight: Sight) -> DoctorPart:
    """The C compiler that builds the library of simulated machines."""
    place = sight.find_program(*_COMPILERS)
    zig = sight.find_package("ziglang")
    if place is None and zig is None and (silent := sight.unread_programs("compiler")):
        return silent
    if place is None and zig is None:
        words = "no cc, gcc or clang is on PATH: no machine can be simulated"
        return DoctorPart("compiler", PartState.ABSENT, words, sight.install("compiler"))
    return DoctorPart("compiler", PartState.WORKS, place or f"zig {zig}")


def judge_launchers(sight: Sight) -> DoctorPart:
    """The launchers that can start ranks on several machines; gpudiag starts those of one machine itself."""
    silent = sight.unread_programs("launchers")
    if silent is not None:
        return silent
    found = [name for name in _LAUNCHERS if sight.find_program(name) is not None]
    if not found:
        words = "none is on PATH: ranks run on this machine alone"
        return DoctorPart("launchers", PartState.NOT_HERE, words)
    return DoctorPart("launchers", PartState.WORKS, ", ".join(found))
