"""What an unroll worker builds is what the trainer has, but for the training."""

from __future__ import annotations

import functools

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.config import shipping as config_shipping
from alf_lite.data_transformers.hindsight import HindsightExperienceTransformer
from alf_lite.data_transformers.normalizing_transformers import ObservationNormalizer
from alf_lite.environments.creation import create_environment
from alf_lite.environments.specs_only_environment import RemoteEnvironment
from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.testing.goal_environment import PointGoalEnv
from alf_lite.testing.structured_environments import CountingEnv
from alf_lite.unrollers.actor_copy import create_remote_environment

create_counting = functools.partial(
    create_environment, env_ctor=CountingEnv, num_parallel_environments=2
)
create_goals = functools.partial(
    create_environment, env_ctor=PointGoalEnv, num_parallel_environments=2
)
small_dqn = functools.partial(DqnAlgorithm, optimizer=Adam(lr=1e-3))


def config(algorithm_ctor=small_dqn, **fields) -> TrainerConfig:
    return TrainerConfig(
        **{
            "algorithm_ctor": algorithm_ctor,
            "async_unroll": True,
            "num_unroll_workers": 3,
            "num_iterations": 1,
            "mini_batch_length": 2,
            "mini_batch_size": 8,
            **fields,
        }
    )


def arrive(described: RemoteEnvironment):
    """What a worker's process makes of the recipe."""
    config_files.reset()
    recipe = config_shipping.load(described.recipe).value
    return recipe(11)


@pytest.fixture
def built():
    """(config, create_env) → the trainer's algorithm, and what a worker has."""
    opened = []

    def build(settings, create_env=create_counting):
        described = create_remote_environment(settings, create_env, seed=5)
        opened.append(described)
        trained = create_algorithm(settings, described)
        parts = arrive(described)
        opened.append(parts.env)
        return trained, parts

    yield build
    for env in opened:
        env.close()


def test_the_worker_has_environments_of_its_own_and_the_trainer_sees_all(built):
    trained, parts = built(config())
    assert parts.env.batch_size == 2
    assert trained._env.batch_size == 6
    time_step = parts.env.reset()
    nest.assert_same_structure(time_step.observation, trained.observation_spec)


@pytest.mark.parametrize("algorithm_ctor", [small_dqn, PPOAlgorithm])
def test_a_worker_acts_as_the_trainer_would_after_it_got_its_tensors(
    built, algorithm_ctor
):
    torch.manual_seed(0)
    trained, parts = built(
        config(
            algorithm_ctor,
            data_transformer_ctor=ObservationNormalizer,
            max_policy_lag=0,
        )
    )
    copy = parts.actor
    trained.data_transformer.observe(
        nest.map_structure(lambda t: t[None], parts.env.reset())
    )
    state = trained.acting_state()
    own = copy.tensors
    assert list(own) == list(state.tensors)
    with torch.no_grad():
        for name, tensor in state.capture().items():
            own[name].copy_(tensor)
    copy.after_refresh()

    time_step = parts.env.reset(seed=1)
    steps = []
    for actor, act in ((trained, trained.rollout_step), (copy.policy, copy.act)):
        torch.manual_seed(3)
        transform_state = actor.get_initial_transform_state(2)
        inputs, _ = actor.transform_timestep(time_step, transform_state)
        trained.set_training(False)
        with torch.inference_mode():
            step = act(inputs, actor.get_initial_rollout_state(2))
        steps.append((inputs, step._replace(output=())))
    for a, b in zip(nest.flatten(steps[0]), nest.flatten(steps[1]), strict=True):
        torch.testing.assert_close(a, b)
    assert copy.policy.device.type == "cpu"
    assert copy.policy.overwrite_policy_output == trained.overwrite_policy_output


def test_a_worker_acts_at_random_while_the_trainer_says_so(built):
    trained, parts = built(
        config(
            functools.partial(small_dqn, rollout_epsilon_greedy=0.0),
            initial_collect_steps=100,
            initial_random_policy=True,
        )
    )
    trained.progress.env_steps = 17
    state = trained.acting_state()
    assert trained.acts_randomly
    own = parts.actor.tensors
    with torch.no_grad():
        for name, tensor in state.capture().items():
            own[name].copy_(tensor)
    acting = parts.actor.policy.progress
    assert acting.env_steps == 0
    inputs = parts.env.reset()
    policy_state = parts.actor.policy.get_initial_rollout_state(2)

    def actions():
        with torch.inference_mode():
            steps = [parts.actor.act(inputs, policy_state) for _ in range(50)]
        return {tuple(step.output.tolist()) for step in steps}

    assert len(actions()) == 1
    parts.actor.after_refresh()
    assert acting.env_steps == 17
    assert len(actions()) > 1


def test_workers_that_were_given_other_seeds_get_other_environments():
    create = functools.partial(create_goals, seed=None)
    described = create_remote_environment(
        config(algorithm_ctor=PPOAlgorithm, max_policy_lag=0), create, seed=5
    )
    recipe = config_shipping.load(described.recipe).value
    goals = []
    for seed in (1, 2, 1):
        parts = recipe(seed)
        goals.append(parts.env.reset().observation["desired_goal"])
        parts.env.close()
    described.close()
    assert torch.equal(goals[0], goals[2])
    assert not torch.equal(goals[0], goals[1])


def test_what_only_training_needs_does_not_reach_the_worker():
    settings = config(
        hook_ctors=(lambda: None,),  # which cannot be sent
        evaluate=True,
        eval_interval=5,
        early_stop_return=10.0,
        offline_buffer_dir="nowhere",
        offline_buffer_length=1000,
        rl_train_after_update_steps=3,
        rl_train_every_update_steps=2,
        compile=True,
    )
    described = create_remote_environment(settings, create_counting, seed=0)
    recipe = config_shipping.load(described.recipe).value
    described.close()
    sent = recipe.config
    assert not sent.hook_ctors
    assert (sent.evaluate, sent.offline_sources, sent.compile) == (False, (), False)
    assert sent.device == "cpu"
    parts = recipe(3)
    parts.env.close()


CONF = """
create_environment.env_ctor = @long/CountingEnv
create_environment.num_parallel_environments = 2
long/CountingEnv.episode_lengths = (7,)
TrainerConfig.algorithm_ctor = @small/DqnAlgorithm
small/DqnAlgorithm.rollout_epsilon_greedy = 1.0
small/DqnAlgorithm.optimizer = @Adam()
Adam.lr = 0.5
TrainerConfig.data_transformer_ctor = [@tenth/RewardScaling]
tenth/RewardScaling.scale = 0.1
TrainerConfig.async_unroll = True
TrainerConfig.num_unroll_workers = 2
TrainerConfig.num_iterations = 1
TrainerConfig.mini_batch_length = 2
"""


def test_references_of_a_conf_with_scopes_reach_the_worker():
    config_files.parse_config_text(CONF)
    described = create_remote_environment(TrainerConfig(), create_environment, seed=0)
    described.close()
    parts = arrive(described)
    parts.env.reset()
    action = torch.zeros(2, dtype=torch.int64)
    is_last = [bool(parts.env.step(action).is_last().all()) for _ in range(7)]
    assert is_last == [False] * 6 + [True]
    time_step = parts.env.current_time_step
    transform_state = parts.actor.policy.get_initial_transform_state(2)
    inputs, _ = parts.actor.policy.transform_timestep(time_step, transform_state)
    torch.testing.assert_close(inputs.reward, 0.1 * time_step.reward)
    forgotten = [
        line for line in config_files.unused_bindings() if "TrainerConfig" not in line
    ]
    assert not forgotten  # what the trainer itself used is not sent
    parts.env.close()


@pytest.mark.parametrize(
    ("settings", "create_env"),
    [
        ({"algorithm_ctor": lambda **kwargs: small_dqn(**kwargs)}, create_counting),
        ({}, lambda seed: create_counting(seed=seed)),
        ({"data_transformer_ctor": lambda *args: None}, create_counting),
    ],
)
@pytest.mark.parametrize("conf", ["", "CountingEnv.episode_lengths = (3,)"])
def test_what_has_no_name_is_refused_with_advice(settings, create_env, conf):
    config_files.parse_config_text(conf)
    with pytest.raises(
        ConfigError,
        match=r"(?s)async_unroll: .*cannot be sent .*lambda.*"
        r"top level of a module, or bind them in a conf",
    ):
        create_remote_environment(config(**settings), create_env, seed=0)


def test_an_algorithm_that_needs_only_the_specs_lets_the_environment_be_closed():
    described = create_remote_environment(config(), create_counting, seed=5)
    create_algorithm(config(), described)
    described.release()
    with pytest.raises(RuntimeError, match="was closed"):
        described.borrow_original()


def test_hindsight_keeps_the_environment_that_computes_its_rewards():
    settings = config(
        SacAlgorithm, data_transformer_ctor=HindsightExperienceTransformer
    )
    described = create_remote_environment(settings, create_goals, seed=0)
    create_algorithm(settings, described)
    described.release()
    original = described.borrow_original()
    assert original.reset().observation["desired_goal"].shape == (2, 3)
    described.close()
