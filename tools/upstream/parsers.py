"""The facts of upstream's texts: a name or number, and its value. Pure functions of a text.

A parser raises nothing on a text of another form: it finds less, and the comparison reports that.
"""

import ast
import re
from collections.abc import Mapping

Facts = Mapping[str, str]  # the value is empty where the name alone is the fact


def parse_pynvml(source: str) -> dict[str, str]:
    """Every integer constant of pynvml with its number, and every function that it asks the library for."""
    numbers: dict[str, int] = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign):
            value = _number(statement.value, numbers)
            if value is not None:
                numbers |= {
                    target.id: value
                    for target in statement.targets
                    if isinstance(target, ast.Name) and target.id.lower().startswith("nvml")
                }
    functions = re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', source)
    constants = {name: str(value) for name, value in numbers.items() if abs(value) < 1 << 64}
    return constants | dict.fromkeys(functions, "function")


def _number(node: ast.expr, known: Mapping[str, int]) -> int | None:
    """The integer that an expression of constants is; None for any other."""
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return known.get(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _number(operand, known)
            return None if inner is None else -inner
        case ast.BinOp(left=left, op=operator, right=right):
            first, second = _number(left, known), _number(right, known)
            if first is None or second is None:
                return None
            match operator:
                case ast.BitOr():
                    return first | second
                case ast.LShift():
                    return first << second
                case ast.Add():
                    return first + second
                case ast.Sub():
                    return first - second
    return None


def parse_nccl_words(library: bytes) -> dict[str, str]:
    """Every word NCCL_X that stands alone in a library, without the prefix."""
    words = re.findall(rb"(?<![A-Za-z0-9_])NCCL_([A-Z0-9_]*[A-Z0-9])(?![A-Za-z0-9_])", library)
    return {word.decode(): "" for word in words}


def parse_torch_variables(header: str) -> dict[str, str]:
    """The variables TORCH_NCCL_X and TORCH_FR_X that a header of c10d reads."""
    return dict.fromkeys(re.findall(r'"(TORCH_(?:NCCL|FR)_[A-Z0-9_]+)"', header), "")


def parse_marking_bindings(source: str) -> dict[str, str]:
    """The bindings of torch._C that forbid CUDA in forks (torch/csrc/cuda/Module.cpp)."""
    names: set[str] = set()
    function = ""
    for line in source.splitlines():
        begun = re.match(r"^(?:static )?PyObject ?\* ?(\w+)\(", line)
        function = begun[1] if begun else "" if line.startswith("}") else function
        if function and re.search(r"\b(?:poison_fork|register_fork_handler_for_device_init)\(", line):
            names.add(function)
    bound = re.findall(
        r'\{\s*"(\w+)",\s*(?:\(PyCFunction\)\s*|castPyCFunctionWithKeywords\(\s*)?(\w+)', source
    )
    return {binding: "" for binding, called in bound if called in names}


def parse_driver_xids(header: str) -> dict[str, str]:
    """The codes of nverror.h with their names; a later name for the same code is an alias."""
    codes: dict[str, str] = {}
    for name, code in re.findall(r"^#define +(\w+) +\((\d+)\)", header, re.MULTILINE):
        if name.endswith("_LAST_ERROR") or "_RECOVERY_LEVEL_" in name:
            continue
        codes.setdefault(code, name)
    return codes


def parse_xid_catalogue(source: str) -> dict[str, str]:
    """Each code of NVIDIA's catalogue, by gpud's file, with its action's bucket."""
    entry = (
        r'Code: (\d+), Mnemonic: "(?:[^"\\]|\\.)*", Description: "((?:[^"\\]|\\.)*)",'
        r' ImmediateResolution: "(\w*)"'
    )
    return {
        code: bucket for code, description, bucket in re.findall(entry, source) if description != "Unused"
    }


def parse_sxids(table: str) -> dict[str, str]:
    """Each SXid of NVSentinel's table with its bucket."""
    return {code: bucket for code, bucket in re.findall(r"^(\d{5}),\w+,(\w+),", table, re.MULTILINE)}


def parse_cuda_errors(header: str) -> dict[str, str]:
    """The names of CUDA's errors (cuda.h, driver_types.h) with their numbers."""
    pairs = re.findall(r"^\s*(CUDA_ERROR_\w+|cudaError[A-Z]\w+)\s*=\s*(\d+)\s*,?", header, re.MULTILINE)
    return {name: number for name, number in pairs if number not in ("0", "10000")}


def parse_minimum_drivers(page: str) -> dict[str, str]:
    """The oldest driver branch for each CUDA major version, from the table of minor version compatibility."""
    text = re.sub(r"<[^>]+>|&gt;|>", lambda found: ">" if found[0] in ("&gt;", ">") else " ", page)
    return {major: branch for major, branch in re.findall(r"CUDA (\d+)\.x[\s|]*>=\s*(\d{3})", text)}


def parse_torch_builds(source: str) -> dict[str, str]:
    """The CUDA builds of torch, such as cu130, from the script that names them for its own workflows."""
    listed = re.search(r"^CUDA_ARCHES\s*=\s*\[([^\]]*)\]", source, re.MULTILINE)
    versions = re.findall(r'"(\d+\.\d+)"', listed[1]) if listed else []
    return {"cu" + version.replace(".", ""): "" for version in versions}


def parse_deprecated(source: str) -> dict[str, str]:
    """The public functions of torch.distributed that warn, and private ones that were public."""
    names = [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).rpartition(".")[2] == "deprecated"
    ]
    return dict.fromkeys(names, "")
