"""The project around the code: what is installed, and that the documents are true."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys

import pytest

from alf_lite.algorithms.algorithm import Algorithm
from tests.source_code import ROOT

CONFS = sorted(path.stem for path in (ROOT / "confs").glob("*.gin"))
DOCUMENTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "confs").glob("*.md"),
    *(ROOT / "benchmarks").glob("*.md"),
    *(ROOT / "examples").glob("*.md"),
]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def commands(document: str) -> list[str]:
    """The blocks that a document marks as shell."""
    return re.findall(r"```bash\n(.*?)```", document, re.DOTALL)


def setup_constant(name: str) -> dict[str, list[str]] | list[str]:
    """A constant of setup.py, without running it."""
    for node in ast.parse(read("setup.py")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"setup.py has no {name}")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that a normal installation would copy the package to."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return folder


def test_the_reference_shows_what_a_constructor_takes_and_numbers():
    griffe = pytest.importorskip("griffe")
    pytest.importorskip("latex2mathml")
    pytest.importorskip("mkdocs")
    extensions = griffe.load_extensions(f"{ROOT}/docs/site_hooks.py:Constructors")

    def read(module, name):
        path = ROOT / f"{module.replace('.', '/')}.py"
        source = griffe.visit(module, path, path.read_text(encoding="utf-8"))
        extensions.call("on_package", pkg=source, loader=griffe.GriffeLoader())
        return {p.name: p.default for p in source[name].parameters}

    ppo = read("alf_lite.algorithms.ppo_algorithm", "PPOAlgorithm")
    assert ppo["gamma"] == "0.99"
    config = read("alf_lite.config.trainer_config", "TrainerConfig")
    assert config["num_iterations"] == "0"
    assert config["unroll_length"] == "as the algorithm declares"


def test_confs_and_type_marker_are_installed(installed):
    confs = sorted(p.stem for p in (installed / "alf_lite" / "confs").rglob("*.gin"))
    assert confs == CONFS
    assert (installed / "alf_lite" / "py.typed").exists()
    assert (installed / "alf_lite" / "networks" / "__init__.pyi").exists()


def test_nothing_else_is_installed(installed):
    assert [path.name for path in installed.iterdir()] == ["alf_lite"]


def test_an_installed_conf_is_found_by_its_name_from_any_folder(installed, tmp_path):
    code = (
        "from alf_lite.config.files import find_conf\nprint(find_conf('ppo_cart_pole'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=str(installed)),
        check=True,
        capture_output=True,
        text=True,
    )
    expected = installed / "alf_lite" / "confs" / "ppo_cart_pole.gin"
    assert done.stdout.strip() == str(expected)


def test_dependencies_have_lower_bounds_only():
    extras = setup_constant("EXTRAS")
    requirements = [*setup_constant("CORE"), *(r for e in extras.values() for r in e)]
    for requirement in requirements:
        assert re.fullmatch(r"[\w.-]+(\[\w+\])?>=[\d.]+", requirement), requirement


def test_the_constraints_pin_what_the_tests_install():
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in read("constraints.txt").splitlines()
        if "==" in line
    }
    extras = setup_constant("EXTRAS")
    installed = [*extras["test"], *extras["mujoco"], *extras["atari"]]
    for requirement in [*setup_constant("CORE"), *installed]:
        name = re.match(r"[\w-]+", requirement).group()
        assert name.lower().replace("_", "-") in pinned, name


def test_ci_runs_the_test_command_of_the_readme():
    install_and_train, install_and_test = commands(read("README.md"))[:2]
    assert "/alf_lite train" in install_and_train
    assert "pytest" in install_and_test
    assert install_and_test in read(".ci/run")


def test_the_readme_is_short():
    assert len(read("README.md").splitlines()) <= 150


def test_every_conf_is_in_the_readme_and_has_its_score():
    for conf in CONFS:
        assert f"`{conf}`" in read("README.md"), conf
        assert re.search(rf"^\| `{conf}` \|", read("confs/README.md"), re.MULTILINE)


def test_confs_that_the_readme_names_exist():
    named = re.findall(r"--conf=(\w+)\b", read("README.md"))
    assert named
    assert set(named) <= set(CONFS)


def test_the_method_contract_has_the_signatures_of_the_code():
    rows = re.findall(
        r"^\| `(\w+)\(([\w, ]+)\)` \|", read("docs/method_contract.md"), re.MULTILINE
    )
    assert {"rollout_step", "train_step", "calc_loss"} <= {name for name, _ in rows}
    for name, parameters in rows:
        _, *expected = inspect.signature(getattr(Algorithm, name)).parameters
        assert parameters.split(", ") == expected, name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_links_between_documents_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), target
