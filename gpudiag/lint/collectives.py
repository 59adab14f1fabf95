"""The collectives that a script calls: torch's, Horovod's, Accelerate's and Lightning's."""

import ast
from collections.abc import Iterator
from functools import lru_cache

from gpudiag.lint import vocabulary as known
from gpudiag.lint.program import Program, is_constant, keyword
from gpudiag.lint.trace import Step

# The place of the argument `group`, in torch 2.4 to 2.15.
_GROUP_AT = {
    **dict.fromkeys("barrier monitored_barrier".split(), 0),
    **dict.fromkeys("broadcast broadcast_object_list all_reduce all_gather all_gather_object".split(), 2),
    **dict.fromkeys("all_gather_into_tensor all_to_all".split(), 2),
    **dict.fromkeys("reduce gather gather_object scatter scatter_object_list reduce_scatter".split(), 3),
    **{"reduce_scatter_tensor": 3, "all_to_all_single": 4},
}


@lru_cache(maxsize=1)
def collectives_of(program: Program) -> tuple[tuple[str, Step], ...]:
    """The collectives that a script calls, in order, by their names."""
    return tuple(_find(program))


def _find(program: Program) -> Iterator[tuple[str, Step]]:
    for step in program.steps:
        if not isinstance(step.node, ast.Call):
            continue
        name = program.names.qualify(step.node.func) or ""
        package, _, short = name.rpartition(".")
        if (
            (
                package == "torch.distributed"
                and (short in known.TORCH_COLLECTIVES or short in known.GROUP_MAKERS)
            )
            or name == known.INIT
            or name in known.ACCELERATE_FUNCTIONS
            or name in known.RAY_REPORTS
            or (package.startswith("horovod.") and short in known.HOROVOD_COLLECTIVES)
        ):
            yield short, step
        elif (
            (
                isinstance(step.node.func, ast.Attribute)
                and step.node.func.attr in known.ACCELERATE_COLLECTIVES
            )
            and "accelerator" in program.values.kinds(step.node.func.value)
        ) or (isinstance(step.node.func, ast.Attribute) and _is_of_all(program, step.node.func)):
            yield step.node.func.attr, step
        elif program.owner == "Lightning":
            called = _of_lightning(program, step.node)
            if called is not None:
                yield called, step


def _is_of_all(program: Program, method: ast.Attribute) -> bool:
    """Whether a method gathers over the ranks: of torchmetrics, and of Hugging Face's Trainer."""
    package = {"compute": "torchmetrics.", "evaluate": "transformers.", "predict": "transformers."}.get(
        method.attr
    )
    if package is None or not isinstance(method.value, ast.Name | ast.Attribute):
        return False
    bindings = program.values.reaching(method.value)
    made = bindings[0].value if len(bindings) == 1 else None
    if isinstance(made, ast.Call) and getattr(made.func, "attr", "") in ("to", "cuda"):
        made = getattr(made.func, "value", None)
    if not isinstance(made, ast.Call) or keyword(made, "sync_on_compute") or keyword(made, "process_group"):
        return False
    name = program.names.qualify(made.func) or ""
    return name.startswith(package) and (package == "torchmetrics." or name.endswith("Trainer"))


def _of_lightning(program: Program, call: ast.Call) -> str | None:
    """The collective of Lightning that a call makes: of a module, its trainer, a strategy or Fabric."""
    func = call.func
    if not isinstance(func, ast.Attribute):
        return None
    receiver = ast.unparse(func.value)
    last = receiver.rsplit(".", 1)[-1]
    if func.attr in ("log", "log_dict") and not is_constant(keyword(call, "sync_dist"), True):
        return None
    around = program.names.class_around(call)
    is_module = last in ("pl_module", "lightning_module", "litmodel") or (
        receiver == "self" and around is not None and program.values.derives_from(around, "lightning.")
    )
    if is_module and func.attr in ("all_gather", "log", "log_dict"):
        return f"{func.attr}(sync_dist=True)" if func.attr != "all_gather" else "all_gather"
    if last == "strategy" and func.attr in known.LIGHTNING_STRATEGY:
        return f"strategy.{func.attr}"
    if last == "trainer" and func.attr == "save_checkpoint":
        return "trainer.save_checkpoint"
    made = program.values.reaching(func.value) if isinstance(func.value, ast.Name | ast.Attribute) else []
    is_fabric = last == "fabric" or any(
        (program.names.qualify(getattr(binding.value, "func", None)) or "").endswith(".Fabric")
        for binding in made
    )
    return f"fabric.{func.attr}" if is_fabric and func.attr in known.LIGHTNING_FABRIC else None


def is_of_a_part(name: str, step: Step) -> bool:
    """Whether the collective is one of a smaller group, or makes one without the ranks that are not in it."""
    if any(
        is_constant(keyword(step.node, word), value)
        for word, value in (("use_local_synchronization", True), ("_init_backend", False))
    ):
        return True
    call = step.node
    if keyword(call, "group") is not None or keyword(call, "process_set") is not None:
        return True
    if not isinstance(call, ast.Call):
        return False
    place = _GROUP_AT.get(name)
    return (place is not None and len(call.args) > place) or any(
        "group" in ast.unparse(a).lower() for a in call.args[1:]
    )
