"""Collects steps: ``python -m alf_lite.bin.collect --root_dir=runs/sac ...``."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from alf_lite.bin import recorded_steps_flags
from alf_lite.bin.program import (
    CHECKPOINT,
    DEVICE,
    SEED,
    Flag,
    Program,
    run_of_flags,
)
from alf_lite.errors import ConfigError

if TYPE_CHECKING:
    from alf_lite.environments.environment import Environment
    from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
    from alf_lite.tools.collector import Amount, Collection, CollectionPolicy

_logger = logging.getLogger(__name__)

FLAGS = (
    *recorded_steps_flags.ENVIRONMENT,
    Flag(
        "root_dir",
        "Directory of a run: its environment and, unless --policy says otherwise, "
        "the policy that it has trained. Its configuration is executed: use only "
        "runs that you trust.",
        excludes="conf",
    ),
    CHECKPOINT._replace(needs="root_dir", excludes="policy"),
    Flag(
        "policy",
        "Who acts: random, or module:function, a function from a TimeStep [B] to "
        "actions [B] as agents choose them: between -1 and 1 where they have bounds, "
        "integers from 0 on. Default: the policy of --root_dir, else the algorithm of "
        "--conf as the conf builds it.",
    ),
    Flag(
        "epsilon_greedy",
        "How much a trained policy explores: 0 takes the most likely actions, 1 "
        "draws them (TrainerConfig.epsilon_greedy). For --policy: the probability "
        "of a random action. Default: as in the evaluations of the run, and 0.",
        kind=float,
        low=0.0,
        high=1.0,
    ),
    Flag(
        "num_env_steps",
        "Environment steps to collect, of all environments together.",
        kind=int,
        low=1,
    ),
    Flag(
        "whole_episodes",
        "With --num_env_steps: complete the episodes that are open when there are "
        "so many.",
        default=False,
        needs="num_env_steps",
    ),
    Flag(
        "num_episodes",
        "Whole episodes to collect, as many from each environment.",
        kind=int,
        low=1,
    ),
    Flag(
        "num_environments",
        "Environments that are stepped side by side. Default: as in the conf.",
        kind=int,
        low=1,
    ),
    Flag(
        "overwrite_policy_output",
        "Keep the action that the environment reports as executed instead of the "
        "policy's, as for an expert within the environment.",
        default=False,
    ),
    *recorded_steps_flags.OUTPUT,
    SEED._replace(help="Seed of the environments and the actions."),
    DEVICE._replace(excludes="policy"),
)


def collect(values: FlagValues) -> int:
    """Collects as the flags say; returns the exit code."""
    _check(values)
    recorded_steps_flags.check_output(values)

    # Imported here: it takes a second or two, which a misspelt flag need not wait for.
    from alf_lite.tools.collector import Collection
    from alf_lite.tools.stop_requests import StopRequestedError, StopRequests

    recorded_steps_flags.parse_config(values, _run_conf(values))
    kwargs = {"seed": values.seed}
    if values.num_environments is not None:
        kwargs["num_parallel_environments"] = values.num_environments
    with contextlib.ExitStack() as stack:
        env = recorded_steps_flags.create_environment(**kwargs)
        stack.callback(env.close)
        collection = Collection(
            env,
            _policy(values, env),
            _amount(values),
            seed=values.seed,
            overwrite_policy_output=values.overwrite_policy_output,
        )
        requests = stack.enter_context(StopRequests())
        try:
            collection.run(requests)
        except StopRequestedError:
            assert requests.received is not None, "that is why"
            _write_part(values, env, collection)
            return 128 + requests.received
        except BaseException:
            if not requests.is_in_haste:
                _write_part(values, env, collection)
            raise
        _write(values, env, collection)
    return 0


def _write(values: FlagValues, env: Environment, collection: Collection) -> None:
    """Writes what was collected and says what to do with it."""
    from alf_lite.datasets.writing import write_source

    buffer = collection.to_buffer()
    try:
        write_source(buffer, env, values.output, values.format)
    except ConfigError as error:  # of a disk that is full by now, for one
        raise ConfigError(f"{error}\n{_write_elsewhere(buffer)}") from error
    recorded_steps_flags.tell_written(values)


def _write_elsewhere(buffer: ReplayBuffer) -> str:
    """Writes all steps where temporary files are; says where, or that it cannot."""
    from alf_lite.checkpoints.files import new_output

    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix="alf_lite-steps-"))
        with new_output(folder / "steps.replay") as temporary:
            buffer.save().write_to(temporary)
    except (ConfigError, OSError) as error:
        if folder is not None:
            folder.rmdir()
        return f"Nor elsewhere: {error}. The steps are lost."
    return (
        f"The steps are in {folder}/steps.replay instead, in the format alf_lite: move "
        "it, or write it in another with convert_buffer."
    )


def _write_part(values: FlagValues, env: Environment, collection: Collection) -> None:
    """Writes what there is of what was wanted, after a signal or an error."""
    if not collection.num_env_steps:
        _logger.warning("No step was collected: there is no %s.", values.output)
        return
    _write(values, env, collection)
    _logger.warning(
        "Collecting ended after %s; %s holds what there was, %d steps.",
        collection.progress,
        values.output,
        collection.num_env_steps,
    )


def _check(values: FlagValues) -> None:
    """Raises ConfigError if the flags leave open what to do, or contradict."""
    if not (values.root_dir or recorded_steps_flags.names_environment(values)):
        raise ConfigError("no environment is named: give --root_dir, --conf or --env")
    if not (values.root_dir or values.conf or values.policy):
        raise ConfigError("--policy is missing: random, or module:function")
    if (values.num_env_steps is None) == (values.num_episodes is None):
        raise ConfigError(
            "how much should be collected? Give --num_env_steps or --num_episodes, one "
            "of them"
        )


def _run_conf(values: FlagValues) -> str | None:
    """The configuration of the run, if there is one."""
    if not values.root_dir:
        return None
    from alf_lite.policies import run_policy

    parameters = recorded_steps_flags.parameters(values)
    root_dir, _ = run_of_flags(values)
    return run_policy.run_conf(root_dir, parameters, run_policy.TO_COLLECT)


def _amount(values: FlagValues) -> Amount:
    from alf_lite.tools import collector

    if values.num_episodes is not None:
        return collector.NumEpisodes(values.num_episodes)
    return collector.NumSteps(values.num_env_steps, values.whole_episodes)


def _policy(values: FlagValues, env: Environment) -> CollectionPolicy:
    from alf_lite.config import files as config_files
    from alf_lite.tools import collector

    if values.policy is None:
        return _algorithm_policy(values, env)
    config_files.warn_of_unused_parameters()  # else, where the algorithm is built
    policy: CollectionPolicy = collector.RandomPolicy(env)
    if values.policy != "random":
        function = collector.import_function(values.policy)
        policy = collector.ScriptedPolicy(function, values.policy, env)
    if values.epsilon_greedy:
        policy = collector.EpsilonGreedyPolicy(policy, values.epsilon_greedy, env)
    return policy


def _algorithm_policy(values: FlagValues, env: Environment) -> CollectionPolicy:
    from alf_lite.policies import run_policy
    from alf_lite.tools.collector import AlgorithmPolicy

    config = run_policy.acting_config(
        device=values.device, epsilon_greedy=values.epsilon_greedy
    )
    if values.root_dir:
        loaded = run_policy.load_policy_checkpoint(*run_of_flags(values))
        algorithm = run_policy.build_policy(config, env, loaded)
    else:
        algorithm = run_policy.build_untrained(config, env)
    acting = algorithm.rl_algorithm
    if values.epsilon_greedy and not acting.explores_by_epsilon:
        raise ConfigError(
            f"--epsilon_greedy: {acting.name} always takes its best action. Leave it "
            "out; a function (--policy) can add noise to what a policy chooses."
        )
    return AlgorithmPolicy(algorithm, env.batch_size)


PROGRAM = Program(
    name="collect",
    summary="Lets a policy act and writes the steps, to be trained on later.",
    examples=(
        "--root_dir=runs/sac --num_env_steps=100000 --output=data/expert.replay",
        "--root_dir=runs/sac --checkpoint=5000 --epsilon_greedy=1 --num_episodes=50 "
        "--output=data/medium.npz --format=npz",
        "--env=Pendulum-v1 --policy=random --num_env_steps=20000 "
        "--output=data/random.replay",
        "--env=Pendulum-v1 --policy=my_module:controller --num_episodes=20 "
        "--output=data/pendulum/scripted-v0 --format=minari",
    ),
    flags=FLAGS,
    run=collect,
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
