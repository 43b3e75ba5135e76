"""Installs alf_lite. Tool settings: pyproject.toml; versions: constraints.txt."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (ROOT / "alf_lite/__init__.py").read_text(), re.MULTILINE
)
assert VERSION is not None

# Lower bounds only: an upper bound here makes the library impossible to install beside
# others once a dependency moves on.
CORE = [
    "torch>=2.8",
    "numpy>=1.26",
    "gymnasium>=1.1",
    "gin-config>=0.5",
    "absl-py>=2.0",
    "optree>=0.14",
    "tensorboard>=2.15",
    "rich>=13.0",
]

EXTRAS = {
    "mujoco": ["gymnasium[mujoco]>=1.1"],
    "atari": ["ale-py>=0.10", "opencv-python-headless>=4.8"],
    "box2d": ["gymnasium[box2d]>=1.1"],
    "envpool": ["envpool>=1.1"],
    "minigrid": ["minigrid>=3.0"],
    "dm_control": ["shimmy>=2.0", "dm-control>=1.0.20"],
    "robotics": ["gymnasium-robotics>=1.3"],
    "highway": ["highway-env>=1.10"],
    "mo": ["mo-gymnasium>=1.3"],
    "minari": ["minari>=0.5.4", "h5py>=3.10", "pillow>=10.0", "pyarrow>=14.0"],
    "games": [
        "open-spiel>=2.0",
        "pettingzoo>=1.27",
        "mpe2>=1.1",
        "pygame-ce>=2.5",
        "rlcard>=1.2",
    ],
    "ray": ["ray>=2.52"],
    "tune": ["optuna>=4.0"],
    "wandb": ["wandb>=0.18"],
    # The client and its local store: mlflow itself wants an older pyarrow than minari.
    "mlflow": ["mlflow-skinny>=2.16", "sqlalchemy>=2.0", "alembic>=1.13"],
    "numba": ["numba>=0.61"],
    "plot": ["matplotlib>=3.8"],
    "video": [
        "imageio>=2.34",
        "imageio-ffmpeg>=0.5",
        "pillow>=10.1",
        "pygame-ce>=2.5",
    ],
    "export": ["onnx>=1.17", "onnxscript>=0.3", "onnxruntime>=1.20"],
    "docs": [
        "mkdocs>=1.6",
        "mkdocs-material>=9.5",
        "mkdocstrings[python]>=0.27",
        "latex2mathml>=3.77",
    ],
    "test": ["pytest>=8.0", "pytest-xdist>=3.5", "hypothesis>=6.100"],
}
EXTRAS["dev"] = [
    *EXTRAS["test"],
    "ruff>=0.9",
    "mypy>=1.13",
    "codespell>=2.3",
    "nbclient>=0.10",
    "ipykernel>=6.29",
    "pre-commit>=4.0",
]

setup(
    name="alf_lite",
    version=VERSION.group(1),
    description="Fast, algorithm-centric reinforcement learning in PyTorch",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    install_requires=CORE,
    extras_require=EXTRAS,
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
    entry_points={"console_scripts": ["alf_lite = alf_lite.bin.command:main"]},
    zip_safe=False,
)
