"""Build the simulated libnvidia-ml.so.1, once per source, and make copies that lack some symbols."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib import resources, util
from pathlib import Path

from gpudiag.errors import UsageError
from gpudiag.folders import cache_folder, temporary_folder
from gpudiag.installed import install_command
from gpudiag.reference.nvml import exported_functions, return_texts

LIBRARY_NAME = "libnvidia-ml.so.1"

_SOURCE_NAME = "nvml_library.c"
_SOURCES = (_SOURCE_NAME, "nvml_state.h", "nvml_events.h", "nvml_gpm.h")
_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-sanitize=all", "-pthread")
# A cold `zig cc` builds its own C runtime first, which takes tens of seconds on a slow machine.
_BUILD_TIMEOUT_SECONDS = 180.0
_BUILD_BYTES = 2 << 20  # its sources and itself


def build_library() -> Path:
    """The path of the simulated library, built with the machine's C compiler where it is not cached.

    Raises:
        UsageError: there is no C compiler, or it could not build the library.
    """
    package = resources.files("gpudiag.simulate")
    sources = {name: package.joinpath(name).read_text("utf-8") for name in _SOURCES}
    sources["nvml_symbols.inc"] = _render_symbols()
    digest = hashlib.sha256(f"{sources}\0{_FLAGS}\0{os.uname().machine}".encode()).hexdigest()
    name = f"libnvidia-ml-{digest[:16]}.so"
    cache = _cache_directory(name)
    library = cache / name
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(prefix=".build-", dir=cache) as folder:
        work = Path(folder)
        for source, text in sources.items():
            (work / source).write_text(text)
        _compile(work)
        # A concurrent build makes the same file: the last rename wins, harmlessly.
        os.replace(work / LIBRARY_NAME, library)
    return library


def copy_library(target: Path, omitted_symbols: tuple[str, ...]) -> None:
    """Write a copy of the library to `target` in which dlsym does not find `omitted_symbols`.

    Raises:
        UsageError: the library does not export one of the names, or cannot be built.
    """
    image = build_library().read_bytes()
    for name in omitted_symbols:
        image = _rename_symbol(image, name)
    target.write_bytes(image)


def _rename_symbol(image: bytes, name: str) -> bytes:
    """The image with one exported name changed in its string table, so that it is not found.

    The whole name stands once there (and in the debugger's): the library spells it without `nvml` elsewhere.
    """
    spelled = b"\0" + name.encode() + b"\0"
    if name not in exported_functions() or spelled not in image:
        raise UsageError(f"{name} is not a function of NVML", hint="gpudiag simulate SCENARIO describes one")
    return image.replace(spelled, b"\0-" + spelled[2:])


def _render_symbols() -> str:
    """The C header with the exported names and the return texts."""
    functions = " ".join(f"X({name.removeprefix('nvml')})" for name in exported_functions())
    returns = " ".join(f'X({code}, "{text}")' for code, text in return_texts().items())
    return f"#define NVML_FUNCTIONS(X) {functions}\n#define NVML_RETURNS(X) {returns}\n"


def _cache_directory(name: str) -> Path:
    """This user's cache folder, or a temporary one where it neither holds that file nor has room for it."""
    wanted = cache_folder()
    if wanted is None:
        return _own_temporary_directory()
    try:
        if (wanted / name).exists():
            return wanted
        wanted.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=wanted) as room:
            os.posix_fallocate(room.fileno(), 0, _BUILD_BYTES)
            return wanted
    except OSError:
        return _own_temporary_directory()


def _own_temporary_directory() -> Path:
    """A folder in the temporary one that no other user can write to, whose code we would run."""
    folder = temporary_folder() / f"gpudiag-cache-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if (
            folder.is_dir()
            and not folder.is_symlink()
            and status.st_uid == os.getuid()
            and not status.st_mode & 0o022
        ):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="gpudiag-cache-"))


def _compilers() -> list[list[str]]:
    """The commands to try, best first: $CC, cc, gcc, clang, and zig from PyPI."""
    commands = [shlex.split(os.environ["CC"])] if os.environ.get("CC", "").strip() else []
    commands += [[name] for name in ("cc", "gcc", "clang") if shutil.which(name)]
    if util.find_spec("ziglang") is not None:
        commands.append([sys.executable, "-m", "ziglang", "cc"])
    return commands


def _compiler_hint() -> str:
    return f"install a C compiler (cc), or: {install_command('compiler')}"


def _compile(work: Path) -> None:
    """Build the source in `work` with the first compiler that can."""
    compilers = _compilers()
    if not compilers:
        raise UsageError("no C compiler for the simulated NVML library", hint=_compiler_hint())
    complaints = []
    for compiler in compilers:
        command = [
            *compiler,
            *_FLAGS,
            f"-Wl,-soname,{LIBRARY_NAME}",
            "-o",
            LIBRARY_NAME,
            _SOURCE_NAME,
            "-ldl",
        ]
        environment = {
            **os.environ,
            "ZIG_GLOBAL_CACHE_DIR": os.environ.get("ZIG_GLOBAL_CACHE_DIR", str(work / "zig")),
        }
        try:
            result = subprocess.run(
                command,
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_BUILD_TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            complaints.append(f"{shlex.join(compiler)}: {error}")
            continue
        if result.returncode == 0 and (work / LIBRARY_NAME).exists():
            return
        first_line = next(iter(result.stderr.strip().splitlines()), f"exit status {result.returncode}")
        complaints.append(f"{shlex.join(compiler)}: {first_line}")
    raise UsageError(
        f"the simulated NVML library could not be built: {'; '.join(complaints)}", hint=_compiler_hint()
    )
