"""Files that come from others are data, never code: what the library must not call."""

from __future__ import annotations

import ast

import pytest

from tests.source_code import imported_modules, parse_package

# Unpickling runs whatever the file says.
FORBIDDEN_MODULES = {
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "pickle",
    "shelve",
}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "os.popen",
    "os.system",
    "torch.jit.load",
    "yaml.full_load",
    "yaml.load",
    "yaml.unsafe_load",
}


def unsafe_code(modules: dict[str, ast.Module]) -> list[str]:
    """Every place that may run code out of a file or a string."""
    return [
        f"{module}:{line}: {what}"
        for module, tree in modules.items()
        for line, what in (*_unsafe_imports(tree), *_unsafe_calls(tree))
    ]


def _unsafe_imports(tree: ast.Module) -> list[tuple[int, str]]:
    return [
        (line, f"import of {name}")
        for line, name in imported_modules(tree)
        if name.split(".")[0] in FORBIDDEN_MODULES
    ]


def _unsafe_calls(tree: ast.Module) -> list[tuple[int, str]]:
    found = []
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = ast.unparse(call.func)
        keywords = {k.arg: ast.unparse(k.value) for k in call.keywords}
        if name in FORBIDDEN_CALLS:
            found.append((call.lineno, f"{name}()"))
        if name == "torch.load" and keywords.get("weights_only") != "True":
            found.append((call.lineno, "torch.load without weights_only=True"))
        if keywords.get("allow_pickle", "False") != "False":
            found.append((call.lineno, f"{name} with allow_pickle"))
        if keywords.get("shell", "False") != "False":
            found.append((call.lineno, f"{name} with shell"))
    return found


@pytest.mark.ci
def test_the_library_runs_no_code_out_of_files():
    assert unsafe_code(parse_package()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "def f():\n    import dill",
        "from joblib.externals import loky",
        "eval('1')",
        "exec(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=flag)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "subprocess.run(command, shell=True)",
        "os.system(command)",
    ],
)
def test_unsafe_code_is_found(source):
    assert len(unsafe_code({"m": ast.parse(source)})) == 1


@pytest.mark.parametrize(
    "source",
    [
        "network.eval()",
        "torch.load(path, weights_only=True)",
        "np.load(path)",
        "np.load(path, allow_pickle=False)",
        "subprocess.run(command)",
    ],
)
def test_safe_code_is_allowed(source):
    assert unsafe_code({"m": ast.parse(source)}) == []
