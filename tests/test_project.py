"""The project around the code: what is installed, and that the documents are true."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tomllib

import pytest

import alf_lite
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


PROJECT = tomllib.loads(read("pyproject.toml"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


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


@pytest.mark.ci
def test_confs_and_type_marker_are_installed(installed):
    confs = sorted(p.stem for p in (installed / "alf_lite" / "confs").rglob("*.gin"))
    assert confs == CONFS
    assert (installed / "alf_lite" / "py.typed").exists()
    assert (installed / "alf_lite" / "networks" / "__init__.pyi").exists()


@pytest.mark.parametrize("address", [None, "https://example.org/alf_lite"])
def test_the_page_of_the_package_has_no_dead_links(address, tmp_path):
    """Without an address they are left out; with one, all lead there."""
    for name in "setup.py", "README.md", "pyproject.toml":
        text = read(name)
        if address:
            text = text.replace("# [project.urls]", "[project.urls]")
            text = text.replace('# Source = "https://..."', f'Source = "{address}"')
        (tmp_path / name).write_text(text, encoding="utf-8")
    code = (
        "import setuptools\n"
        "setuptools.setup = lambda **k: print(k['long_description'])\n"
        "exec(compile(open('setup.py').read(), 'setup.py', 'exec'), "
        "{'__file__': 'setup.py', '__name__': '__main__'})"
    )
    run = [sys.executable, "-c", code]
    page = subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True)
    targets = re.findall(r"\]\(([^)]+)\)|<img src=\"([^\"]+)", page.stdout)
    links = ["".join(target) for target in targets]
    assert all(re.match(r"https?://|#", link) for link in links), links
    assert any(link.startswith(address) for link in links) if address else True
    assert "pip install" in page.stdout


def test_the_citation_is_of_this_version():
    version = re.search(r"^version: (.+)$", read("CITATION.cff"), re.MULTILINE)[1]
    assert version == alf_lite.__version__
    assert f"alf_lite-{version}-py3" in read("docs/install.md")


def test_nothing_else_is_installed(installed):
    assert [path.name for path in installed.iterdir()] == ["alf_lite"]


def test_an_installed_conf_is_found_by_its_name_from_any_folder(installed, tmp_path):
    code = (
        "from alf_lite.config.names import find_conf\nprint(find_conf('ppo_cart_pole'))"
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
    requirements = [*PROJECT["dependencies"], *(r for e in EXTRAS.values() for r in e)]
    requirements.remove("alf_lite[test]")
    for requirement in requirements:
        assert re.fullmatch(r"[\w.-]+(\[\w+\])?>=[\d.]+", requirement), requirement


def test_the_constraints_pin_what_the_tests_install():
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in read("constraints.txt").splitlines()
        if "==" in line
    }
    installed = [*EXTRAS["test"], *EXTRAS["mujoco"], *EXTRAS["atari"]]
    for requirement in [*PROJECT["dependencies"], *installed]:
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
