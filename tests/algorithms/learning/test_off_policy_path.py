"""What the settings of off-policy training do to the batches that are trained on."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from alf_lite import nest
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.learning import updates
from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import AlgStep, LossInfo
from alf_lite.data_transformers.single_step_transformers import RewardScaling
from alf_lite.environments.creation import create_environment
from alf_lite.optimizers.optimizers import SGD
from alf_lite.tensor_specs import TensorSpec
from alf_lite.testing.structured_environments import CountingEnv

NUM_ENVIRONMENTS = 2


class Info(NamedTuple):
    memory: Any = ()  # what the policy had in mind
    prediction: Any = ()  # in training, the same computed anew


class Rememberer(RLAlgorithm):
    """Its output is the output of a recurrent cell; it never changes.

    In training it keeps what it computes beside what it computed when it acted.
    """

    def __init__(self, observation_spec, action_spec, *, recurrent=True, **kwargs):
        state_spec = TensorSpec((4,)) if recurrent else ()
        super().__init__(
            observation_spec,
            action_spec,
            train_state_spec=state_spec,
            is_on_policy=False,
            optimizer=SGD(lr=0.0),
            **kwargs,
        )
        self.cell = nn.GRUCell(1, 4)
        self.num_rows: list[int] = []
        self.infos: list[Info] = []
        self.step_types: list[torch.Tensor] = []
        self.batch_infos: list[Any] = []

    def _remember(self, inputs, state):
        observation = inputs.observation % 100  # the number of the step
        if nest.is_empty(state):
            return self.cell(observation), ()
        state = self.cell(observation, state)
        return state, state

    def rollout_step(self, inputs, state):
        memory, state = self._remember(inputs, state)
        action = torch.zeros(inputs.reward.shape[0], dtype=torch.int64)
        return AlgStep(action, state, Info(memory=memory))

    def preprocess_experience(self, root_inputs, rollout_info, batch_info):
        self.batch_infos.append(batch_info)
        return root_inputs, rollout_info

    def train_step(self, inputs, state, rollout_info):
        self.num_rows.append(inputs.reward.shape[0])
        memory, state = self._remember(inputs, state)
        return AlgStep(state=state, info=rollout_info._replace(prediction=memory))

    def calc_loss(self, info):
        self.infos.append(nest.map_structure(torch.Tensor.detach, info))
        return LossInfo(
            loss=info.prediction.sum(-1), priority=self.priority(self.batch_infos[-1])
        )

    def priority(self, batch_info):
        return torch.ones(batch_info.positions.shape[0])

    def after_update(self, root_inputs, info):
        self.step_types.append(root_inputs.step_type)

    @property
    def is_as_when_acting(self) -> torch.Tensor:
        """[T, B] bool, of the last update."""
        info = self.infos[-1]
        return torch.isclose(info.memory, info.prediction, atol=1e-5).all(-1)


def make(algorithm_ctor=Rememberer, *, episode_length=5, options=None, **settings):
    torch.manual_seed(0)
    env = create_environment(
        env_ctor=lambda: CountingEnv((episode_length,), reward_is_time=True),
        num_parallel_environments=NUM_ENVIRONMENTS,
        seed=0,
    )
    settings = {
        "unroll_length": 30,
        "mini_batch_length": 2,
        "mini_batch_size": 200,
        "num_iterations": 1,
        **settings,
    }
    return algorithm_ctor(
        env.observation_spec,
        env.action_spec,
        env=env,
        config=TrainerConfig(**settings),
        **(options or {}),
    )


def test_updates_that_compiling_would_slow_down_are_not_compiled(caplog):
    run = make(compile=True).training_run
    assert isinstance(run.updates._loss_functions[0], LossFunction)
    assert "compiled updates of Rememberer take longer" in caplog.text


# What is drawn


def counts_of(algorithm: Rememberer, iterations: slice) -> torch.Tensor:
    """How often the window at each position of each environment was drawn."""
    counts = torch.zeros(NUM_ENVIRONMENTS, 30)
    for info in algorithm.batch_infos[iterations]:
        counts.index_put_(
            (info.env_ids, info.positions), torch.ones(()), accumulate=True
        )
    return counts


def collect_once(algorithm: Rememberer, num_batches: int) -> None:
    algorithm.setup_training()
    algorithm.unroll(30)
    for _ in range(num_batches):
        algorithm.train_from_replay_buffer()


def test_every_window_is_drawn_equally_often():
    algorithm = make()
    collect_once(algorithm, 100)
    counts = counts_of(algorithm, slice(None))
    # The last step has no successor.
    assert (counts[:, 29] == 0).all()
    expected = 100 * 200 / (2 * 29)
    assert ((counts[:, :29] - expected).abs() < 5 * expected**0.5).all()


class Prioritising(Rememberer):
    """The windows of environment 1 matter three times as much."""

    def priority(self, batch_info):
        return 1.0 + 2.0 * batch_info.env_ids


@pytest.mark.ci
def test_prioritised_windows_are_drawn_more_often_and_weigh_less():
    algorithm = make(Prioritising, priority_replay=True)
    collect_once(algorithm, 130)
    drawn = counts_of(algorithm, slice(30, None)).sum(1)  # all have theirs by then
    ratio = (drawn[1] / drawn[0]).item()
    assert 1.5 < ratio <= 3.3
    info = algorithm.batch_infos[-1]
    weights = [info.importance_weights[info.env_ids == i].unique() for i in (0, 1)]
    assert [len(weight) for weight in weights] == [1, 1]
    assert weights[0] > weights[1]
    # Drawn p times as often to the power of α, they weigh 1 / p to the power of αβ.
    exponent = torch.log(weights[0] / weights[1]) / torch.log(torch.tensor(ratio))
    assert 0 < exponent <= 1.1


# What the policy remembers


def test_stored_states_continue_what_the_policy_remembered():
    algorithm = make(use_rollout_state=True, mini_batch_length=4)
    algorithm.train_iter()
    assert algorithm.is_as_when_acting.all()


def test_without_stored_states_windows_begin_with_an_empty_memory():
    algorithm = make(mini_batch_length=4)
    algorithm.train_iter()
    begins = algorithm.step_types[-1] == 0
    remembers = begins.cumsum(0) > 0
    assert torch.equal(algorithm.is_as_when_acting, remembers)
    assert 0 < remembers.float().mean() < 1


@pytest.mark.parametrize("use_rollout_state", [False, True])
@pytest.mark.parametrize("burn_in", [1, 5, 6])
def test_burn_in_fills_the_memory_before_the_steps_that_are_trained(
    burn_in, use_rollout_state
):
    algorithm = make(
        mini_batch_length=burn_in + 1,
        burn_in_length=burn_in,
        use_rollout_state=use_rollout_state,
    )
    algorithm.train_iter()
    assert algorithm.is_as_when_acting.shape == (1, 200)
    # Every 6 steps an episode begins: 5 of burn-in and the one that is trained see it.
    remembers_all = use_rollout_state or burn_in >= 5
    assert algorithm.is_as_when_acting.all() == remembers_all
    begins = algorithm.step_types[-1] == 0
    assert begins.any()
    assert algorithm.is_as_when_acting[begins].all()


# How train_step is called


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("at_once", [None, False, True])
def test_steps_are_trained_at_once_or_one_by_one(recurrent, at_once):
    algorithm = make(
        options={"recurrent": recurrent},
        mini_batch_length=3,
        use_rollout_state=recurrent,
        temporally_independent_train_step=at_once,
    )
    algorithm.train_iter()
    is_at_once = not recurrent if at_once is None else at_once
    assert algorithm.num_rows == ([600] if is_at_once else [200] * 3)
    # Either way every step starts from the state that it had.
    assert algorithm.is_as_when_acting.all()


def test_an_unroll_length_above_one_may_have_a_fraction():
    algorithm = make(unroll_length=1.5, initial_collect_steps=100)
    sizes = []
    for _ in range(4):
        algorithm.train_iter()
        sizes.append(algorithm.training_run.replay.own.num_steps // NUM_ENVIRONMENTS)
    assert sizes == [1, 3, 4, 6]


# What an algorithm of n steps is given


class Recorder(DqnAlgorithm):
    """Keeps the transitions that it trains on."""

    def train_step(self, inputs, state, rollout_info):
        self.trained_on = (inputs, rollout_info)
        return super().train_step(inputs, state, rollout_info)


@pytest.mark.parametrize("priority_replay", [False, True])
def test_n_steps_of_the_buffer_are_summed_up_to_the_end_of_the_episode(priority_replay):
    gamma, n = 0.5, 3
    algorithm = make(
        Recorder,
        options={"n_step": n, "gamma": gamma, "optimizer": SGD(lr=0.0)},
        initial_collect_steps=0,
        mini_batch_length=n + 1,
        priority_replay=priority_replay,
    )
    algorithm.train_iter()
    inputs, transition = algorithm.trained_on
    assert inputs.reward.shape == (200,)
    seen = set()
    for i in range(200):
        if inputs.step_type[i] == 2:
            continue
        step = int(inputs.observation[i]) % 100
        num_steps = min(n, 5 - step)  # the episode terminates at step 5
        # The reward on arrival at step k is k.
        returns = sum(gamma**k * (step + k + 1) for k in range(num_steps))
        is_end = step + num_steps == 5
        assert transition.reward[i].item() == pytest.approx(returns)
        assert transition.discount[i].item() == (0.0 if is_end else gamma**n)
        assert int(transition.next_observation[i]) % 100 == step + num_steps
        seen.add(step)
    assert seen == {0, 1, 2, 3, 4}


class Preprocesses(DqnAlgorithm):
    """As DQN, but who knows what it does with experience?"""

    def preprocess_experience(self, root_inputs, rollout_info, batch_info):
        self.num_calls = getattr(self, "num_calls", 0) + 1
        return super().preprocess_experience(root_inputs, rollout_info, batch_info)


class Mixin:
    """Wants another reward, whatever it is mixed with."""

    def preprocess_experience(self, root_inputs, rollout_info, batch_info):
        root_inputs = root_inputs._replace(reward=root_inputs.reward + 100)
        return super().preprocess_experience(root_inputs, rollout_info, batch_info)


class Mixed(Mixin, DqnAlgorithm):
    pass


class OwnBatches(DqnAlgorithm):
    def preprocess(self, experience, valid, batch_info):
        batch = super().preprocess(experience, valid, batch_info)
        transition = batch.rollout_info
        return batch._replace(
            rollout_info=transition._replace(reward=transition.reward + 100)
        )


def replaces_it(*args, **kwargs):
    """One whose method is replaced on the object alone."""
    algorithm = DqnAlgorithm(*args, **kwargs)
    original = algorithm.preprocess_experience

    def preprocess_experience(root_inputs, rollout_info, batch_info):
        changed = root_inputs._replace(reward=root_inputs.reward + 100)
        return original(changed, rollout_info, batch_info)

    algorithm.preprocess_experience = preprocess_experience
    return algorithm


@pytest.mark.parametrize("algorithm_ctor", [Mixed, OwnBatches, replaces_it])
def test_whoever_changes_experience_is_asked_for_it(algorithm_ctor):
    algorithm = make(algorithm_ctor, unroll_length=4, initial_collect_steps=0)
    assert algorithm.step_pairing() is None
    rewards = []
    train_step = algorithm.train_step
    algorithm.train_step = lambda inputs, state, transition: (
        rewards.append(transition.reward.min()) or train_step(inputs, state, transition)
    )
    algorithm.train_iter()
    assert min(rewards) > 50


HALF = functools.partial(RewardScaling, scale=0.5)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("num_updates", [1, 3])
@pytest.mark.parametrize(
    ("prioritized", "transformers"),
    [(False, ()), (True, ()), (False, (HALF,)), (False, (HALF, HALF))],
)
def test_steps_that_are_only_paired_train_as_those_that_are_preprocessed(
    n_step, num_updates, prioritized, transformers, monkeypatch
):
    parameters, losses = [], []
    for algorithm_ctor in (DqnAlgorithm, Preprocesses):
        if algorithm_ctor is Preprocesses:  # and differentiates by torch's public way
            monkeypatch.setattr(updates.gradients, "_ENGINE", None)
        algorithm = make(
            algorithm_ctor,
            mini_batch_size=16,
            unroll_length=4,
            initial_collect_steps=0,
            priority_replay=prioritized,
            num_updates_per_train_iter=num_updates,
            mini_batch_length=n_step + 1,
            options={"n_step": n_step},
            data_transformer_ctor=transformers,
        )
        assert (algorithm.step_pairing() is None) == (algorithm_ctor is Preprocesses)
        seen = []
        algorithm.after_update = lambda inputs, info, seen=seen: seen.append(
            (inputs, info)
        )
        steps = [algorithm.train_iter() for _ in range(4)]
        assert steps == [(n_step + 1) * 16 * num_updates] * 4
        assert algorithm.training_run.replay.batches._may_take_pairs
        parameters.append(nest.map_structure(torch.clone, algorithm.state_dict()))
        losses.append(seen)
    assert algorithm.num_calls > 0
    assert nest.flatten(losses[0])
    for paired, preprocessed in zip(*map(nest.flatten, losses), strict=True):
        assert torch.equal(paired, preprocessed)
    for name, value in parameters[0].items():
        assert torch.equal(value, parameters[1][name]), name
