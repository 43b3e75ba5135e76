"""What ``check_env`` has found, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.tools.text_tables import aligned

MASK = "action_mask"  # where an observation or an info has one by convention
_SLOW_SECONDS = 3e-4  # a step that is worth a process of its own
_LARGE = 10.0


class LeafReport(NamedTuple):
    """One tensor of an observation, an action or a reward."""

    path: str
    spec: TensorSpec
    seen: tuple[float, float] | None  # smallest and largest value

    @property
    def bounds(self) -> str:
        spec = self.spec
        if not isinstance(spec, BoundedTensorSpec):
            return "unbounded"
        low, high = np.min(spec.minimum), np.max(spec.maximum)
        if np.isinf(low) and np.isinf(high):
            return "unbounded"
        return f"{low:.4g} to {high:.4g}"

    @property
    def shown(self) -> str:
        return "-" if self.seen is None else f"{self.seen[0]:.4g} to {self.seen[1]:.4g}"

    @property
    def is_outside(self) -> bool:
        """Whether a value is not within the bounds."""
        spec = self.spec
        if self.seen is None or not isinstance(spec, BoundedTensorSpec):
            return False
        return bool(
            self.seen[0] < np.min(spec.minimum) or self.seen[1] > np.max(spec.maximum)
        )


class Episodes(NamedTuple):
    """Those of random actions, as far as they have ended."""

    lengths: Sequence[int]
    returns: Sequence[float]
    num_steps: int  # of all that was tried

    def __str__(self) -> str:
        if not self.lengths:
            return f"none has ended in {self.num_steps} steps"
        mean = float(np.mean(self.lengths))
        return (
            f"{len(self.lengths)} have ended, {mean:.1f} steps on average, return "
            f"{min(self.returns):.4g} to {max(self.returns):.4g}"
        )


class EnvReport(NamedTuple):
    """What is wrong with an environment, and what it costs.

    ``problems`` stop a training, or spoil it; ``warnings`` may be meant so.
    """

    name: str
    problems: Sequence[str]
    warnings: Sequence[str] = ()
    advice: Sequence[str] = ()
    leaves: Sequence[LeafReport] = ()
    episodes: Episodes | None = None  # of random actions
    steps_per_second: Mapping[str, float] = MappingProxyType(
        {}
    )  # how it was stepped -> all together
    bytes_per_step: int = 0  # of a time step, as a replay buffer stores it

    @property
    def is_usable(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "name": self.name,
            "is_usable": self.is_usable,
            "problems": list(self.problems),
            "warnings": list(self.warnings),
            "advice": list(self.advice),
            "leaves": {
                leaf.path: {
                    "shape": list(leaf.spec.shape),
                    "dtype": str(leaf.spec.dtype).removeprefix("torch."),
                    "bounds": leaf.bounds,
                    "seen": leaf.seen and list(leaf.seen),
                }
                for leaf in self.leaves
            },
            "episodes": None if self.episodes is None else self.episodes._asdict(),
            "steps_per_second": dict(self.steps_per_second),
            "bytes_per_step": self.bytes_per_step,
        }

    def __str__(self) -> str:
        lines = [self.name]
        if self.leaves:
            lines += ["", *_table(_leaf_rows(self.leaves))]
        if self.steps_per_second:
            rows = [[f"{v:,.0f}", n] for n, v in self.steps_per_second.items()]
            lines += ["", *_table([["STEPS/S", "HOW"], *rows])]
            gigabytes = self.bytes_per_step / 1000
            lines.append(
                f"  {self.bytes_per_step:,} bytes per step: a million of them in a "
                f"replay buffer take {gigabytes:.3g} GB"
            )
        if self.episodes is not None:
            lines.append(f"  episodes of random actions: {self.episodes}")
        for title, texts in (
            ("advice", self.advice),
            ("warnings", self.warnings),
            ("problems", self.problems),
        ):
            if texts:
                lines += ["", f"{title}:", *(f"  - {text}" for text in texts)]
        count = len(self.problems)
        end = "It can be trained in."
        if count:
            end = "1 problem." if count == 1 else f"{count} problems."
        return "\n".join([*lines, "", end])


def _leaf_rows(leaves: Sequence[LeafReport]) -> list[list[str]]:
    rows = [["LEAF", "SHAPE", "DTYPE", "BOUNDS", "SEEN"]]
    for leaf in leaves:
        dtype = str(leaf.spec.dtype).removeprefix("torch.")
        shape = str(list(leaf.spec.shape))
        rows.append([leaf.path, shape, dtype, leaf.bounds, leaf.shown])
    return rows


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"  {line}" for line in aligned(rows)]


def advise(
    leaves: Sequence[LeafReport],
    episodes: Episodes,
    steps_per_second: Mapping[str, float],
    has_time_limit: bool,
    info: Mapping[str, Any] = MappingProxyType({}),
) -> list[str]:
    """What may make training in it easier or faster.

    Args:
        leaves: of its time steps.
        episodes: that were tried.
        steps_per_second: see ``EnvReport``.
        has_time_limit: whether all episodes end.
        info: all keys that were in its infos, with a value.
    """
    advice = []
    if not episodes.lengths and not has_time_limit:
        advice.append(
            "there is no time limit: create_environment.max_episode_steps = N puts one "
            "around it"
        )
    for leaf in leaves:
        if leaf.seen is None:
            continue
        largest = max(map(abs, leaf.seen))
        if leaf.path.startswith("observation"):
            if leaf.spec.is_continuous and largest > _LARGE:
                advice.append(
                    f"{leaf.path} is up to {largest:.4g}: "
                    "TrainerConfig.data_transformer_ctor = [@ObservationNormalizer] "
                    "brings it to where networks learn well"
                )
        elif leaf.path.startswith("reward") and largest > _LARGE:
            advice.append(
                f"a reward is up to {largest:.4g}: TrainerConfig.data_transformer_ctor "
                "= [@RewardNormalizer] or @RewardScaling keeps losses small"
            )
    return [
        *advice,
        *_advise_on_speed(steps_per_second),
        *_advise_on_infos(info),
        *_advise_on_actions(leaves),
    ]


def _advise_on_speed(steps_per_second: Mapping[str, float]) -> list[str]:
    by_mode = {how.split(",")[0]: speed for how, speed in steps_per_second.items()}
    single = by_mode.get("one environment", np.inf)
    in_process, processes = by_mode.get("sync"), by_mode.get("async")
    if in_process and processes and processes > 1.2 * in_process:
        return [
            "it is slow enough for processes: create_environment.vectorization_mode = "
            f"'async' is {processes / in_process:.1f} times as fast here"
        ]
    if single < 1 / _SLOW_SECONDS and in_process and not processes:
        return ["a step takes long, and it cannot be stepped in processes (see there)"]
    return []


def _advise_on_infos(info: Mapping[str, Any]) -> list[str]:
    """What to do with them; ``info`` has all keys that have come, with a value."""
    advice = []
    if MASK in info:
        advice.append(
            "create_environment.wrappers = [@ActionMaskFromInfo] lets algorithms have "
            "the mask that is in its infos"
        )
    numbers = [k for k, v in info.items() if np.ndim(v) == 0 and _is_number(v)]
    if numbers:
        shown = ", ".join(f'"{key}"' for key in sorted(numbers)[:5])
        advice.append(
            f"create_environment.env_info_keys = [{shown}] makes metrics of its infos; "
            'one that comes at times only is written "KEY?"'
        )
    return advice


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.number | np.bool_)


def _advise_on_actions(leaves: Sequence[LeafReport]) -> list[str]:
    """What fits it."""
    actions = [leaf.spec for leaf in leaves if leaf.path.startswith("action")]
    if any(leaf.path == f"observation['{MASK}']" for leaf in leaves):
        mask = [f"PPOAlgorithm.action_mask_key = '{MASK}' honours its mask"]
    else:
        mask = []
    if all(spec.is_continuous for spec in actions):
        return ["PPO, SAC, TD3 and DDPG take its continuous actions", *mask]
    if len(actions) == 1 and actions[0].shape == ():
        return ["PPO, DQN and SAC take its discrete actions", *mask]
    return ["PPO and SAC take its actions", *mask]
