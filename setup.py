"""Which files alf_lite has, and its README as the page of the package shows it.

What it is and needs: pyproject.toml; the versions that are tested: constraints.txt.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent


def readme() -> str:
    """README.md, whose links into the repository lead to its address, if it has one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    address = project["project"].get("urls", {}).get("Source")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    if address:
        text = re.sub(r"\]\((?!\w+:|#)", f"]({address}/blob/main/", text)
        return re.sub(r'src="(?!\w+:)', f'src="{address}/raw/main/', text)
    text = re.sub(r"<img src=\"(?!\w+:)[^>]*>\n*", "", text)
    return re.sub(r"\[([^\]]+)\]\((?!\w+:)[^)]+\)", r"\1", text)


setup(
    # Type checkers follow a path of an editable installation, not the import hook that
    # the place of the confs asks for otherwise.
    options={"editable_wheel": {"mode": "compat"}},
    long_description=readme(),
    long_description_content_type="text/markdown",
    # The confs live at the top of the repository, where people look for them, and are
    # installed as alf_lite/confs, so that --conf=NAME works from any folder.
    packages=[*find_packages(include=["alf_lite", "alf_lite.*"]), "alf_lite.confs"],
    package_dir={"alf_lite.confs": "confs"},
    package_data={
        "": ["*.pyi"],
        "alf_lite": ["py.typed"],
        "alf_lite.config": ["*.toml"],
        "alf_lite.confs": ["**/*.gin", "README.md"],  # the latter has their scores
    },
)
