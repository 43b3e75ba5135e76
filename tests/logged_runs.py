"""Run directories as training leaves them, without the training."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RETURN = "eval/AverageReturn"


def write_run(
    root_dir: Path,
    points: Iterable[tuple[int, float | None]],
    *,
    tag: str = RETURN,
    conf: str = "ppo",
    env: str = "CartPole-v1",
    **settings: Any,
) -> Path:
    """A run with the value of ``tag`` at some environment steps."""
    root_dir.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "iteration": i,
            "env_steps": env_steps,
            "updates": 2 * i,
            "seconds": i / 2,
            tag: value,
        }
        for i, (env_steps, value) in enumerate(points)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (root_dir / "metrics.jsonl").write_text(lines)
    (root_dir / "run.json").write_text(json.dumps({"conf": conf}))
    bindings = {
        "create_environment.env_name": env,
        "TrainerConfig.random_seed": hash(root_dir.name) % 1000,
        **{name.replace("__", "."): value for name, value in settings.items()},
    }
    text = "".join(f"{name} = {value!r}\n" for name, value in bindings.items())
    operative = f"# Macros:\n{text}TrainerConfig.algorithm_ctor = @PPOAlgorithm\n"
    (root_dir / "operative.gin").write_text(operative)
    return root_dir
