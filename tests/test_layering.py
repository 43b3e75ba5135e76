"""The layers: imports point down only, and siblings do not import each other."""

from __future__ import annotations

import ast
import sys

import pytest

from tests.source_code import imported_modules, parse_package

# Layer 0 is a chain of modules: each may import those before it.
CHAIN = ["exports", "errors", "border", "tensor_specs", "nest", "data_structures"]
CHAIN += ["config"]
# The subpackages of one layer do not know each other.
LAYERS = [
    {"fast"},  # the table of twins, which all that have one ask
    {"utils"},
    {"checkpoints", "distributions", "processes"},
    {"environments", "networks", "replay_buffers", "metrics", "optimizers"},
    {"data_transformers", "datasets"},
    {"unrollers"},
    {"algorithms"},
    {"runs"},
    {"policies"},
    {"trainers"},
    {"games"},
    {"tools", "testing"},
    {"bin"},
]
# A twin may import what it stands for. Nobody imports it: the table names it in a text.
TOP_OF_TWINS = "algorithms"
# A module imports these at its top; the package of an extra only where it is used.
CORE_PACKAGES = {
    "absl",
    "alf_lite",
    "gin",
    "gymnasium",
    "numpy",
    "optree",
    "rich",
    "tensorboard",
    "torch",
}

HEIGHT = {name: i for i, name in enumerate(CHAIN)} | {
    name: len(CHAIN) + i for i, layer in enumerate(LAYERS) for name in layer
}


def layering_errors(modules: dict[str, ast.Module]) -> list[str]:
    """Every import that does not point down, and every part without a layer."""
    errors = []
    for module, tree in modules.items():
        if module == "alf_lite":
            continue  # the roof, whose names are loaded when they are asked for
        part = _part(module)
        if part and part not in HEIGHT:
            errors.append(f"{module}: '{part}' has no layer in tests/test_layering.py")
            continue
        for line, name in imported_modules(tree):
            target = _part(name)
            if _is_twin(name, modules) and not _is_twin(module, modules):
                errors.append(f"{module}:{line}: only the table knows '{name}'")
                continue
            if _is_twin(module, modules) and target in HEIGHT:
                if HEIGHT[target] > HEIGHT[TOP_OF_TWINS]:
                    errors.append(f"{module}:{line}: no twin of what is in '{target}'")
                continue
            if not name.startswith("alf_lite") or target in (part, "", "__version__"):
                continue
            if target not in HEIGHT:
                errors.append(f"{module}:{line}: there is no layer for '{name}'")
            elif not part or HEIGHT[target] >= HEIGHT[part]:
                errors.append(f"{module}:{line}: '{part}' must not import '{target}'")
    return errors


def import_cycle(modules: dict[str, ast.Module]) -> list[str]:
    """The modules of one import cycle, or nothing.

    What is imported for annotations only counts, too: a reader follows it.
    """
    imports = {
        module: sorted(
            {t for _, name in imported_modules(tree) if (t := _module(name, modules))}
            - {module}
        )
        for module, tree in modules.items()
    }
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for target in imports[module]:
            if cycle := visit(target, [*path, module]):
                return cycle
        done.add(module)
        return []

    for module in modules:
        if cycle := visit(module, []):
            return cycle
    return []


def eager_extras(modules: dict[str, ast.Module]) -> list[str]:
    """Packages outside of the core that are imported at the top of a module."""
    known = CORE_PACKAGES | set(sys.stdlib_module_names)
    return [
        f"{module}:{line}: '{name}' belongs into the function that needs it"
        for module, tree in modules.items()
        for statement in tree.body
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for line, name in imported_modules(statement)
        if name.split(".")[0] not in known
    ]


def _part(module: str) -> str:
    """``alf_lite.utils.losses`` -> ``utils``; the package itself has no part."""
    return module.split(".")[1] if "." in module else ""


def _is_twin(name: str, modules: dict[str, ast.Module]) -> bool:
    """Whether it is a module of alf_lite.fast, or something in one."""
    return _module(name, modules).startswith("alf_lite.fast.")


def _module(name: str, modules: dict[str, ast.Module]) -> str:
    """The module that ``from a import b`` written as ``a.b`` loads."""
    if name in modules:
        return name
    parent = name.rpartition(".")[0]
    return parent if parent in modules else ""


def _modules(**sources: str) -> dict[str, ast.Module]:
    return {
        "alf_lite." + name.replace("__", "."): ast.parse(source)
        for name, source in sources.items()
    }


@pytest.mark.ci
def test_imports_point_down_and_every_part_has_a_layer():
    assert layering_errors(parse_package()) == []


@pytest.mark.ci
def test_there_is_no_import_cycle():
    modules = dict(parse_package())
    # What it offers is below it, and is loaded when it is asked for.
    del modules["alf_lite"]
    assert import_cycle(modules) == []


@pytest.mark.ci
def test_extras_are_imported_where_they_are_used():
    assert eager_extras(parse_package()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("utils__losses", "from alf_lite.networks import value_networks"),
        ("utils__losses", "from alf_lite import networks"),
        ("networks__encoders", "import alf_lite.metrics.metrics"),
        ("errors", "from alf_lite import nest"),
        ("runs__record", "from alf_lite.policies.evaluator import evaluate"),
        ("trainers__hooks", "from alf_lite.tools.videos import VideoSettings"),
        ("tools__pictures", "def f():\n    from alf_lite.testing import probes"),
        ("helpers__misc", "x = 1"),
        ("trainers__trainer", "from alf_lite.helpers import misc"),
        ("networks__x", "from alf_lite.fast import twins"),
        ("networks__x", "from alf_lite.fast.twins import values"),
        ("fast__twins", "from alf_lite.trainers import trainer"),
        ("fast", "from alf_lite.utils import losses"),
        ("fast", "from alf_lite.fast.twins import values"),
    ],
)
def test_an_import_that_does_not_point_down_is_found(module, source):
    sources = {"fast__twins": "", module: source}
    assert len(layering_errors(_modules(**sources))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("utils__losses", "from alf_lite.utils import tensor_utils"),
        ("bin__train", "from alf_lite import __version__, nest"),
        ("utils__losses", "from alf_lite.fast import quick"),
        ("fast__twins", "from alf_lite.algorithms import dqn_algorithm"),
        ("algorithms__x", "import torch\nfrom alf_lite.unrollers.sync import Sync"),
    ],
)
def test_imports_that_point_down_are_allowed(module, source):
    sources = {"fast__twins": "", module: source}
    assert layering_errors(_modules(**sources)) == []


def test_a_cycle_inside_of_one_part_is_found():
    modules = _modules(
        utils__a="from alf_lite.utils.b import f",
        utils__b="from alf_lite.utils import c",
        utils__c="def g():\n    import alf_lite.utils.a",
    )
    assert len(import_cycle(modules)) == 4


def test_what_is_imported_for_annotations_only_makes_a_cycle():
    guarded = "if TYPE_CHECKING:\n    from alf_lite.utils.a import f"
    modules = _modules(utils__a="from alf_lite.utils.b import f", utils__b=guarded)
    assert len(import_cycle(modules)) == 3


def test_an_extra_at_the_top_of_a_module_is_found():
    assert len(eager_extras(_modules(utils__a="import os\nimport wandb"))) == 1
    assert eager_extras(_modules(utils__a="def f():\n    import wandb")) == []


def class_names(modules: dict[str, ast.Module]) -> dict[str, list[str]]:
    """The modules that have a class of each name, but for private ones."""
    places: dict[str, list[str]] = {}
    for module, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    return places


@pytest.mark.ci
def test_every_class_has_a_name_of_its_own():
    places = class_names(parse_package()).items()
    assert {name: found for name, found in places if len(found) > 1} == {}


def test_a_class_name_that_exists_twice_is_found():
    sources = {"utils__a": "class Twice: pass", "networks__b": "class Twice: pass"}
    assert len(class_names(_modules(**sources))["Twice"]) == 2
