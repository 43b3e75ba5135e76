import functools

import numpy as np
import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.mbrl_algorithm import Chance, MbrlAlgorithm
from alf_lite.algorithms.parts.dynamics_ensemble import DynamicsEnsemble
from alf_lite.algorithms.parts.trajectory_optimizers import (
    CrossEntropy,
    Mppi,
    RandomShooting,
)
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, StepType, TimeStep
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError, DivergedError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.policies.evaluator import evaluate
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.testing import probe_environments as probes
from alf_lite.trainers.hooks import Hook
from alf_lite.trainers.trainer import Trainer
from alf_lite.unrollers.actor_copy import ActorCopy
from alf_lite.utils.ranks import ranks

OBSERVATION = {"a": TensorSpec((2,)), "b": TensorSpec((1,))}
ACTION = BoundedTensorSpec((2,), torch.float32, -2.0, 2.0)
SMALL = functools.partial(DynamicsEnsemble, num_members=2, fc_layer_params=(16,))


def mbrl(**kwargs):
    torch.manual_seed(0)
    arguments = {
        "horizon": 3,
        "planner": CrossEntropy(12, 3, 2),
        "model_ctor": SMALL,
        "num_particles": 4,
    }
    return MbrlAlgorithm(OBSERVATION, ACTION, **{**arguments, **kwargs})


def steps(*shape):
    torch.manual_seed(1)
    return TimeStep(
        step_type=torch.full(shape, int(StepType.MID), dtype=torch.int32),
        reward=torch.randn(shape),
        discount=torch.ones(shape),
        observation={"a": torch.randn(*shape, 2), "b": torch.randn(*shape, 1)},
        prev_action=4 * torch.rand(*shape, 2) - 2,
        env_id=torch.zeros(shape, dtype=torch.int32),
    )


def reward_of(observation, action, following):
    """Of rows; the actions are those of the environment."""
    return following["a"][:, 0] - observation["b"][:, 0] * action[:, 1]


@pytest.mark.parametrize("sampling", ["ts1", "ts_infinity"])
@pytest.mark.parametrize("reward_fn", [None, reward_of])
def test_the_value_of_a_plan_is_that_of_a_loop(sampling, reward_fn):
    algorithm = mbrl(trajectory_sampling=sampling, gamma=0.9, reward_fn=reward_fn)
    model = algorithm._model
    torch.nn.init.normal_(model._network._output_layer.weight)
    chance = algorithm._draw()
    if sampling == "ts1":
        order = torch.tensor([[0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0]])
        chance = Chance(chance.noise, order)
    state, actions = torch.randn(2, 3), 2 * torch.rand(2, 5, 3, 2) - 1
    with torch.no_grad():
        values = algorithm._value_of(state, actions, chance)
        for b in range(2):
            for j in range(5):
                particles = [(state[b], 0.0, 1.0)] * 4
                for k in range(3):
                    if sampling == "ts1":
                        particles = [particles[i] for i in chance.order[k]]
                    following = []
                    for p, (s, value, discount) in enumerate(particles):
                        member = p // 2
                        found = model(s[None], actions[b, j, k][None])
                        mean = found.mean[member, 0]
                        std = (found.log_variance[member, 0] / 2).exp()
                        after = s + mean[:3] + std[:3] * chance.noise[k, p, 0]
                        reward = mean[3]
                        if reward_fn is not None:
                            action = 2 * actions[b, j, k]
                            reward = after[0] - s[2] * action[1]
                        goes_on = found.continues[member, 0].sigmoid()
                        value = value + discount * reward
                        following.append((after, value, 0.9 * discount * goes_on))
                    particles = following
                expected = sum(value for _, value, _ in particles) / 4
                assert values[b, j].item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("sampling", ["ts1", "ts_infinity"])
def test_plans_are_deterministic_and_of_each_environment_alone(sampling):
    algorithm = mbrl(trajectory_sampling=sampling).eval()
    torch.nn.init.normal_(algorithm._model._network._output_layer.weight)
    inputs = steps(6)
    state = algorithm.get_initial_predict_state(6)
    first = algorithm.predict_step(inputs, state)
    assert torch.equal(algorithm.predict_step(inputs, state).output, first.output)
    assert first.state.shape == (6, 3, 2)
    assert first.output.abs().max() <= 2
    for i in range(6):
        alone = nest.map_structure(lambda t, i=i: t[i : i + 1], inputs)
        one = algorithm.predict_step(alone, state[:1])
        assert torch.allclose(one.output[0], first.output[i], atol=1e-5)
    rollouts = [algorithm.rollout_step(inputs, state).output for _ in range(2)]
    assert not torch.equal(*rollouts)


def fitted(algorithm, window, training=True):
    algorithm.train(training)
    info = BatchInfo(torch.arange(2), torch.tensor([5, 9]))
    inputs, batch = algorithm.preprocess_experience(window, (), info)
    flat = nest.map_structure(lambda t: t.flatten(0, 1), (inputs, batch))
    found = algorithm.calc_loss(algorithm.train_step(flat[0], (), flat[1]).info)
    return found.loss.unflatten(0, inputs.step_type.shape), batch


def test_rewards_make_a_difference_to_the_model_unless_a_function_gives_them():
    def losses(reward_fn):
        window = steps(2, 4)
        others = window._replace(reward=window.reward.exp())
        return [fitted(mbrl(reward_fn=reward_fn), w)[0] for w in (window, others)]

    assert torch.equal(*losses(reward_of))
    assert not torch.equal(*losses(None))


def test_what_a_last_step_leads_to_is_in_no_statistics():
    window = steps(2, 4)
    window.step_type[0, 1] = int(StepType.LAST)
    algorithm = mbrl()
    _, batch = fitted(algorithm, window)
    assert algorithm._model._states.count == 5  # 2 windows of 3, without that one
    seen = window.observation["a"][:, :3].flatten(0, 1)[[0, 2, 3, 4, 5]]
    mean = algorithm._model._states.mean[:2].float()
    torch.testing.assert_close(mean, seen.mean(0))
    before = algorithm._model._states.mean.clone()
    _, held_out = fitted(algorithm, window, training=False)
    assert torch.equal(algorithm._model._states.mean, before)
    assert held_out.weights.eq(1).all()  # all of it counts for every member
    assert not batch.weights.eq(1).all()
    # The transition of step t: a_t came as prev_action with t + 1.
    data = batch.transitions
    torch.testing.assert_close(data.action[1, 2], window.prev_action[1, 3] / 2)
    assert data.reward[1, 2] == window.reward[1, 3]
    expected = algorithm._model.bootstrap_weights(torch.tensor([1]), torch.tensor([11]))
    assert torch.equal(batch.weights[1, 2], expected[:, 0])


def test_ranks_fit_with_the_statistics_of_all_batches(monkeypatch):
    monkeypatch.setattr(ranks, "size", 2)
    monkeypatch.setattr(ranks, "gather", lambda mine: torch.stack([mine, mine]))
    algorithm = mbrl()
    fitted(algorithm, steps(2, 4))
    assert algorithm._model._states.count == algorithm._model._changes.count == 12


@pytest.mark.ci
def test_it_learns_what_the_observation_asks_for():
    config = TrainerConfig(
        num_iterations=80,
        random_seed=0,
        unroll_length=4,
        num_updates_per_train_iter=10,
        mini_batch_size=64,
        initial_collect_steps=160,
        initial_random_policy=True,
        replay_buffer_length=1000,
    )
    ctor = functools.partial(probes.ObservationPolicyEnv, "continuous")
    algorithm = MbrlAlgorithm(
        env=create_environment(env_ctor=ctor, seed=0),
        config=config,
        optimizer=Adam(lr=1e-2),
        model_ctor=functools.partial(SMALL, fc_layer_params=(32,)),
        planner=CrossEntropy(24, 4, 3),
        horizon=3,
        num_particles=2,
    )
    for _ in range(80):
        algorithm.train_iter()
    env = create_environment(env_ctor=ctor, num_parallel_environments=10, seed=1)
    assert np.mean(evaluate(algorithm, env, 10).returns) > 0.85  # at random 0.45
    # It knows that one step is all there is, though plans have three.
    state, action = torch.ones(2, 1, 1), torch.zeros(2, 1, 1)
    _, _, goes_on = algorithm._model.step(state, action, torch.zeros(2, 1, 1))
    assert goes_on.max() < 0.1
    inputs = env.reset()
    state = algorithm.get_initial_rollout_state(10)
    for planner in (Mppi(24, 4, 3, temperature=5.0), RandomShooting(64)):
        algorithm._planner = planner
        actions = algorithm.rollout_step(inputs, state).output
        assert (actions - inputs.observation / 2).abs().mean() < 0.15


class Stops(Hook):
    def after_iter(self, training):
        if training.run.iterations == 12:
            training.request_stop("as the test wants")


def on_pendulum(**kwargs):
    settings = {
        "num_iterations": 20,
        "random_seed": 0,
        "unroll_length": 1,
        "mini_batch_size": 16,
        "initial_collect_steps": 8,
        "initial_random_policy": True,
        "replay_buffer_length": 100,
    }
    constructor = functools.partial(
        MbrlAlgorithm,
        model_ctor=SMALL,
        planner=CrossEntropy(12, 3, 2),
        horizon=3,
        num_particles=4,
        trajectory_sampling="ts1",
    )
    return TrainerConfig(algorithm_ctor=constructor, **{**settings, **kwargs})


@pytest.mark.ci
def test_a_run_is_resumed_to_the_bit(tmp_path):
    create = functools.partial(create_environment, "Pendulum-v1")

    def train(name, hooks=()):
        config = on_pendulum()
        trainer = Trainer(config, tmp_path / name, create_env=create, hooks=hooks)
        trainer.train()
        return trainer.algorithm.state_dict()

    whole = train("whole")
    train("parts", [Stops()])
    resumed = train("parts")
    assert set(resumed) == set(whole)
    for name, tensor in resumed.items():
        assert torch.equal(tensor, whole[name]), name


@pytest.mark.parametrize("sampling", ["ts1", "ts_infinity"])
def test_a_worker_takes_over_what_is_trained(sampling):
    trained, actor = (mbrl(trajectory_sampling=sampling) for _ in range(2))
    fitted(trained, steps(2, 4))
    copy = ActorCopy(actor)
    with torch.no_grad():
        trained._model.min_log_variance.fill_(-3.0)
        for name, tensor in trained.acting_state().tensors.items():
            copy.tensors[name].copy_(tensor)
    inputs, state = steps(3), trained.get_initial_rollout_state(3)
    torch.manual_seed(2)
    expected = trained.rollout_step(inputs, state).output
    torch.manual_seed(2)
    assert torch.equal(copy.act(inputs, state).output, expected)


def test_random_steps_are_not_planned(monkeypatch):
    env = create_environment("Pendulum-v1", seed=0)
    algorithm = create_algorithm(on_pendulum(), env)
    monkeypatch.setattr(CrossEntropy, "optimize", None)
    actions = algorithm.unroll(8).action
    assert len(actions.unique()) == 8
    assert not algorithm.acts_randomly
    with pytest.raises(TypeError):
        algorithm.unroll(1)


def test_what_it_cannot_do_is_refused():
    discrete = BoundedTensorSpec((), torch.int64, 0, 3)
    with pytest.raises(ValueError, match=r"planned in boxes.*MuzeroAlgorithm"):
        MbrlAlgorithm(OBSERVATION, discrete)
    image = BoundedTensorSpec((8, 8, 3), torch.uint8, 0, 255)
    with pytest.raises(ValueError, match="observation: expected floats"):
        MbrlAlgorithm(image, ACTION)
    with pytest.raises(ValueError, match="multiple of the 2 members"):
        mbrl(num_particles=3)
    with pytest.raises(ValueError, match="trajectory_sampling must be one of"):
        mbrl(trajectory_sampling="ts2")
    with pytest.raises(ConfigError, match=r"1 ahead \(to the next step\) take 2"):
        mbrl(config=TrainerConfig(mini_batch_length=1, num_iterations=1))
    with pytest.raises(ValueError, match="horizon must be a positive integer"):
        mbrl(horizon=2.5)
    with pytest.raises(ConfigError, match="takes one reward"):
        mbrl(reward_spec=TensorSpec((2,)))
    with pytest.raises(ValueError, match=r"reward_fn: expected rewards \[48\]"):
        wrong = mbrl(reward_fn=lambda observation, action, following: action)
        wrong.predict_step(steps(1), wrong.get_initial_predict_state(1))


def test_a_reward_fn_and_rewards_of_an_agent_are_refused_together():
    def agent(reward_fn):
        def ctor(*_, **kwargs):
            return mbrl(reward_fn=reward_fn, **kwargs)

        weights = {"extrinsic_reward_weight": 0.5}
        return Agent(OBSERVATION, ACTION, rl_algorithm_ctor=ctor, **weights)

    assert agent(None)
    with pytest.raises(ConfigError, match="plans by a reward_fn"):
        agent(reward_of)


def test_a_model_that_gives_nan_is_said():
    algorithm = mbrl()
    torch.nn.init.constant_(algorithm._model._network._output_layer.bias, torch.nan)
    with pytest.raises(DivergedError, match=r"environments \[0, 1\]: the model has di"):
        algorithm.rollout_step(steps(2), algorithm.get_initial_rollout_state(2))
