"""Loads and evaluates trained policies."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from alf_lite.algorithms.acting import TrainedPolicy, exploring
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.checkpoints.checkpointer import LoadedCheckpoint
from alf_lite.checkpoints.data import NAME
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.environments.creation import create_environment
from alf_lite.environments.environment import Environment
from alf_lite.environments.specs_only_environment import SpecsOnlyEnvironment
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.policies import evaluator, hub, run_policy
from alf_lite.policies.evaluator import EvalResult
from alf_lite.runs import training_state
from alf_lite.utils import random_state

# As many as are made for an evaluation; more of them are hardly faster in a process.
_MAX_ENVIRONMENTS = 8


def load_policy(
    run: str | os.PathLike[str],
    checkpoint: str | int | os.PathLike[str] = "latest",
    *,
    device: str | None = None,
    gin_params: Sequence[str] = (),
    config: TrainerConfig | None = None,
    trust: bool = False,
) -> TrainedPolicy:
    """The policy of a run. The environment need not be installed.

    The configuration of the run is read and executed: load only runs that you trust.
    That of a policy on a hub may only name what alf_lite defines: nothing that is
    downloaded runs code, unless you say so.

    This process computes in as many threads as the run afterwards, in one by default;
    ``torch.set_num_threads`` changes that.

    Args:
        run: the directory of the run; or ``hf://user/name``, ``hf://user/name@revision``
            for one that was shared with ``alf_lite push`` (extra ``hub``); or the path
            of a checkpoint, such as ``result.checkpoint``.
        checkpoint: "latest", "best", a step or the path of a checkpoint of the run.
        device: of the networks; that of the training by default.
        gin_params: override the configuration of the run.
        config: with the ``algorithm_ctor`` that no conf can say, such as
            ``functools.partial(PPOAlgorithm, actor_network_ctor=lambda ...)``. What it
            leaves at its default is as the run says.
        trust: whether the configuration of a policy on a hub may name anything.

    Raises:
        ConfigError: if there is no run, or it cannot be built again; if a hub cannot be
            reached, or what it has names what alf_lite does not define.
        CheckpointError: if the checkpoint cannot be used.
    """
    with contextlib.ExitStack() as stack:
        directory, which = run_and_checkpoint(run, checkpoint, "load_policy")
        if hub.is_shared(directory):
            shared = hub.downloaded(directory, trust=trust)
            directory = str(stack.enter_context(shared))
        elif trust:
            raise ConfigError(
                f"trust=True is for policies on a hub, {hub.SCHEME}user/name. The "
                f"configuration of {directory} is executed anyway."
            )
        stack.enter_context(config_files.own_config())
        algorithm, env, _ = build_to_predict(
            directory, which, device=device, gin_params=gin_params, config=config
        )
    return TrainedPolicy(algorithm, env, is_live=False)


def evaluate(
    policy: TrainedPolicy | RLAlgorithm | str | os.PathLike[str],
    env: str | Environment | gymnasium.Env | Callable[[], Any],
    num_episodes: int = 100,
    deterministic: bool = True,
    *,
    seed: int | None = 0,
) -> EvalResult:
    """How much reward a policy collects: whole episodes, with an interval of the mean.

    Every environment plays as many episodes as the others, so that short ones do not
    count more than long ones. An algorithm that is training goes on afterwards as if
    nothing had been.

    Args:
        policy: of :func:`load_policy` or ``algorithm.policy()``, an algorithm, or the
            directory of a run, or a checkpoint of it.
        env: a name, or a class or function that makes an environment, of which up to
            eight are made; or an environment, which stays open, as of
            ``create_environment(env_ctor=…)`` where that makes a whole batch.
        num_episodes: how many.
        deterministic: the best actions; False draws them from the policy.
        seed: of the environments and of what is drawn; None leaves the environments'
            streams as they are.

    Returns:
        ``mean``, ``ci95`` (the 95 % interval of the mean), ``returns``, ``lengths``.

    Raises:
        ConfigError: if ``policy`` or ``env`` is something else, the policy was trained
            for other observations or actions, has nothing to draw from, or ``env`` is
            the one it trains in.
        ValueError: if ``num_episodes`` is not an integer, at least 1.
    """
    evaluator.check_num_episodes(num_episodes)
    if isinstance(policy, str | os.PathLike):
        policy = load_policy(policy)
    if isinstance(policy, RLAlgorithm):
        policy = policy.policy()
    if not isinstance(policy, TrainedPolicy):
        raise ConfigError(
            "evaluate: expected a policy, an algorithm or the directory of a run, got "
            f"{policy!r}"
        )
    algorithm = policy.algorithm
    with random_state.preserved(), _environment(env, num_episodes, seed) as made:
        if made is algorithm.env:
            raise ConfigError(
                f"evaluate: {algorithm.name} trains in this {made.name}, whose "
                "episodes must not be broken off. Give its name or class, or make "
                "another one."
            )
        _check_specs(policy, made)
        with exploring(algorithm, not deterministic):
            return evaluator.evaluate(algorithm, made, num_episodes, seed=seed)


@contextlib.contextmanager
def _environment(
    env: Any, num_episodes: int, seed: int | None
) -> Iterator[Environment]:
    """What ``evaluate`` was given; closed afterwards if it is made here."""
    if isinstance(env, Environment):
        yield env
        return
    is_single = isinstance(env, gymnasium.Env)
    number = 1 if is_single else max(1, min(num_episodes, _MAX_ENVIRONMENTS))
    if isinstance(env, str):
        made = create_environment(env, number, seed)
    elif is_single or callable(env):
        ctor = functools.partial(_KeptOpen, env) if is_single else env
        made = create_environment("", number, seed, env_ctor=ctor)
    else:
        raise ConfigError(
            "evaluate: expected the name of an environment, a class or function that "
            f"makes one, or an environment, got {env!r}"
        )
    try:
        yield made
    finally:
        made.close()


class _KeptOpen(gymnasium.Wrapper):
    """An environment that stays open when the batch that it is in is closed."""

    def close(self) -> None: ...


def _check_specs(policy: TrainedPolicy, env: Environment) -> None:
    """Raises ConfigError if a policy acts on other observations or actions."""
    kinds = ("observation", "action")
    wanted, found = (
        training_state.described_specs(
            {k: policy.algorithm.needed(getattr(e, f"{k}_spec")) for k in kinds}
        )
        for e in (policy, env)
    )
    lines = [
        f"  {name}: {found.get(name, '-')}, trained for {wanted.get(name, '-')}"
        for name in sorted({*wanted, *found})
        if wanted.get(name) != found.get(name)
    ]
    if lines:
        raise ConfigError(
            f"evaluate: {env.name} is not what the policy was trained for. It has\n"
            + "\n".join(lines)
        )


def run_and_checkpoint(
    run: str | os.PathLike[str], checkpoint: str | int | os.PathLike[str], asks: str
) -> tuple[str, str | int]:
    """The directory of a run, and "latest", "best" or the step of a checkpoint.

    Args:
        run: or its ``TrainResult``, which is a path; or the path of a checkpoint.
        checkpoint: or its path.
        asks: the function that was called, for messages.

    Raises:
        ConfigError: if there is no run, or the checkpoint is of another one.
    """
    if not isinstance(run, str | os.PathLike):
        raise ConfigError(f"{asks}: expected the directory of a run, got {run!r}")
    directory, step = _run_and_step(run) or (os.fspath(run), None)
    if isinstance(checkpoint, os.PathLike) or _run_and_step(checkpoint):
        owner, checkpoint_step = _run_and_step(checkpoint) or ("", -1)
        if os.path.realpath(owner) != os.path.realpath(directory):
            raise ConfigError(
                f"{asks}: checkpoint={str(checkpoint)!r} is not the path of a "
                f"checkpoint of the run {directory}, as .../checkpoints/ckpt-5 is"
            )
        checkpoint = checkpoint_step
    if step is not None and checkpoint not in ("latest", step):
        raise ConfigError(
            f"{asks}: {os.fspath(run)} is one checkpoint, but checkpoint="
            f"{checkpoint!r} asks for another. Leave that out, or give the run, "
            f"{directory}."
        )
    return directory, checkpoint if step is None else step


def _run_and_step(path: Any) -> tuple[str, int] | None:
    """The directory and the step, if it is the path of a checkpoint of a run."""
    if not isinstance(path, str | os.PathLike):
        return None
    place = Path(os.path.abspath(Path(path).expanduser()))
    match = NAME.fullmatch(place.name)
    if match is None or place.parent.name != "checkpoints":
        return None
    return str(place.parent.parent), int(match[1])


def build_to_predict(
    root_dir: str,
    checkpoint: str | int,
    *,
    device: str | None = None,
    gin_params: Sequence[str] = (),
    config: TrainerConfig | None = None,
) -> tuple[RLAlgorithm, SpecsOnlyEnvironment, LoadedCheckpoint]:
    """A policy, the spaces of its environment, and the checkpoint; see above.

    What is bound in this process becomes what the run has bound.
    """
    loaded = run_policy.load_policy_checkpoint(root_dir, checkpoint)
    env = run_policy.environment_of_training(loaded)
    if env is None:
        raise CheckpointError(
            f"{loaded.path} does not say what its environment is like: it was written "
            "by an older version. Train on for an iteration."
        )
    config = run_policy.read_run_config(
        root_dir, gin_params, run_policy.TO_PREDICT, config, with_env=False
    )
    config = dataclasses.replace(config, device=device or config.device)
    algorithm = run_policy.build_policy(config, env, loaded)
    algorithm.eval()
    return algorithm, env, loaded
