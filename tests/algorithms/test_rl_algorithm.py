from __future__ import annotations

import functools
import itertools
import re
import shutil
from typing import Any

import gin
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite import nest
from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.agent import Agent
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.entropy_target import EntropyTarget
from alf_lite.algorithms.impala_algorithm import ImpalaAlgorithm
from alf_lite.algorithms.learning import updates
from alf_lite.algorithms.learning.batch_loss import LossFunction, aggregate_loss
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import DefaultSettings, TrainerConfig
from alf_lite.data_structures import AlgStep, LossInfo, StepType
from alf_lite.data_transformers.create_data_transformer import (
    SequentialDataTransformer,
)
from alf_lite.data_transformers.normalizing_transformers import RewardNormalizer
from alf_lite.environments.gymnasium_environment import GymnasiumEnvironment
from alf_lite.environments.serial_vector_env import SerialVectorEnv
from alf_lite.errors import CheckpointError, ConfigError, DivergedError
from alf_lite.optimizers.optimizers import SGD, Adam
from alf_lite.tensor_specs import TensorSpec

CorrectedPPO = functools.partial(PPOAlgorithm, off_policy_correction="vtrace")
ON_POLICY = [PPOAlgorithm, ActorCriticAlgorithm, ImpalaAlgorithm]


class CountingEnv(gymnasium.Env):
    """The observation counts all steps of this environment; episodes last 3 steps."""

    def __init__(self, *, reward_size: int | None = None, bad_at: int = -1) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._reward_size = reward_size
        if reward_size is not None:
            self.reward_space = spaces.Box(-np.inf, np.inf, (reward_size,))
        self._count = -1

    def reset(self, *, seed=None, options=None):
        self._step = 0
        self._count = self._count + 1 if seed is None else 0
        return np.array([self._count], np.float32), {}

    def step(self, action):
        self._step += 1
        self._count += 1
        reward = 1.0 if self._reward_size is None else np.ones(self._reward_size)
        observation = np.array([self._count], np.float32)
        return observation, reward, self._step == 3, False, {}


def make_env(num: int = 2, **kwargs) -> GymnasiumEnvironment:
    return GymnasiumEnvironment(
        SerialVectorEnv([lambda: CountingEnv(**kwargs)] * num), seed=0
    )


def make(
    cls: Any = PPOAlgorithm, *, env: Any = None, optimizer: Any = None, **settings
) -> RLAlgorithm:
    torch.manual_seed(settings.pop("seed", 0))
    env = env or make_env()
    arguments = settings.pop("arguments", {})
    config = TrainerConfig(**{"num_iterations": 1, "unroll_length": 4, **settings})
    return cls(
        env.observation_spec,
        env.action_spec,
        reward_spec=env.reward_spec,
        env=env,
        config=config,
        optimizer=optimizer or Adam(lr=1e-3),
        **arguments,
    )


class RecordingPPO(PPOAlgorithm):
    """Keeps what it is asked to train on; declares no settings."""

    default_settings = DefaultSettings()

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.trained: list[list[float]] = []
        self.shapes: list[tuple[int, ...]] = []
        self.calls: list[str] = []

    def train_step(self, inputs, state, rollout_info):
        step = super().train_step(inputs, state, rollout_info)
        return step._replace(info=(inputs, step.info))

    def calc_loss(self, info):
        inputs, info = info
        self.calls.append("calc_loss")
        self.shapes.append(tuple(inputs.step_type.shape))
        valid = valid_steps(inputs.step_type)
        if len(valid) == 5:  # with the bootstrap row
            valid[-1] = False
        self.trained[-1].extend(inputs.observation[valid][:, 0].tolist())
        return super().calc_loss(info)

    def train_from_unroll(self, experience, train_info):
        self.trained.append([])
        return super().train_from_unroll(experience, train_info)

    def preprocess_experience(self, root_inputs, rollout_info, batch_info):
        self.calls.append(f"preprocess_experience {tuple(root_inputs.reward.shape)}")
        return super().preprocess_experience(root_inputs, rollout_info, batch_info)

    def after_update(self, root_inputs, info):
        self.calls.append("after_update")

    def after_train_iter(self, root_inputs, rollout_info):
        self.calls.append(f"after_train_iter {tuple(root_inputs.reward.shape)}")


# Of every 4 steps (FIRST, MID, MID, LAST) the LAST one has no transition.
TRAINABLE = [count for count in range(12) if count % 4 != 3]


@pytest.mark.parametrize("mini_batch_length", [None, 1, 2])
def test_every_transition_is_trained_exactly_once_per_pass(mini_batch_length):
    algorithm = make(
        RecordingPPO, mini_batch_length=mini_batch_length, num_updates_per_train_iter=2
    )
    for _ in range(3):
        algorithm.train_iter()
    trained = sorted(itertools.chain(*algorithm.trained))
    assert trained == sorted(TRAINABLE * 4)  # two environments, two passes


@pytest.mark.parametrize("size", [None, 3, 4])
def test_the_number_of_steps_is_reported(size):
    algorithm = make(
        RecordingPPO,
        mini_batch_length=1,
        mini_batch_size=size,
        num_updates_per_train_iter=3,
    )
    assert algorithm.train_iter() == 3 * 2 * 4
    assert sum(b for _, b in algorithm.shapes) == 24


def test_methods_are_called_in_the_order_of_the_contract_with_its_shapes():
    algorithm = make(
        RecordingPPO,
        mini_batch_length=2,
        mini_batch_size=2,
        num_updates_per_train_iter=1,
    )
    algorithm.train_iter()
    assert algorithm.calls == [
        "preprocess_experience (2, 5)",
        *["calc_loss", "after_update"] * 2,
        "after_train_iter (4, 2)",
    ]
    assert algorithm.shapes == [(2, 2)] * 2


def test_a_whole_unroll_is_trained_with_its_bootstrap_row():
    algorithm = make(RecordingPPO)
    algorithm.train_iter()
    assert algorithm.shapes == [(5, 2)]


def test_metrics_count_every_step_once():
    algorithm = make()
    for _ in range(3):
        algorithm.train_iter()
    # 13 rows per environment, of which those with count 0, 4, 8, 12 are FIRST.
    assert algorithm.num_env_steps == 2 * 9
    results = {m.name: m.result() for m in algorithm.get_metrics()}
    assert results["NumberOfEpisodes"] == 2 * 3
    assert results["AverageReturn"] == 3.0
    assert results["AverageEpisodeLength"] == 3.0
    assert [m.name for m in algorithm.get_step_metrics()] == [
        "NumberOfEpisodes",
        "EnvironmentSteps",
    ]


def parameters_of(algorithm: RLAlgorithm) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in algorithm.parameters()])


class Reinforce(RLAlgorithm):
    """A user's algorithm: no train_step, the gradient flows through rollout_step."""

    trains_on_rollout_info = True

    def __init__(self, observation_spec, action_spec, **kwargs) -> None:
        super().__init__(observation_spec, action_spec, is_on_policy=True, **kwargs)
        self.logits = torch.nn.Parameter(torch.zeros(2))

    def rollout_step(self, inputs, state):
        batch_size = inputs.reward.shape[0]
        policy = torch.distributions.Categorical(logits=self.logits)
        action = policy.sample((batch_size,))
        info = {"log_prob": policy.log_prob(action), "reward": inputs.reward}
        return AlgStep(output=action, info=info)

    def calc_loss(self, info):
        return LossInfo(loss=-info["log_prob"][:-1] * info["reward"][1:])


def test_an_algorithm_without_train_step_learns_through_rollout_step():
    algorithm = make(Reinforce, optimizer=SGD(lr=1.0))
    seen = []
    algorithm.after_update = lambda root_inputs, info: seen.append((root_inputs, info))
    assert algorithm.train_iter() == 8
    (steps, info), *_ = seen
    assert info["log_prob"].shape == (5, 2)
    # Both policies are uniform, so d(-log π(a))/dlogits = π - onehot(a), for the mean
    # over the valid steps; log π(a) of 2 actions does not tell a, the moved logits do.
    valid = steps.step_type[:-1] != int(StepType.LAST)
    action = steps.prev_action[1:]
    onehot = torch.nn.functional.one_hot(action, 2).float()
    weight = (steps.reward[1:] * valid)[..., None]
    expected = -(weight * (0.5 - onehot)).sum((0, 1)) / valid.sum()
    torch.testing.assert_close(algorithm.logits.detach(), expected)


def test_the_loss_of_the_bootstrap_row_is_not_used(monkeypatch):
    class Zeroing(Reinforce):
        def calc_loss(self, info):
            loss = info["log_prob"].new_zeros(5, 2)
            return LossInfo(loss=loss + torch.tensor([0, 0, 0, 0, 1e6])[:, None])

    algorithm = make(Zeroing)
    losses = []
    monkeypatch.setattr(
        updates,
        "update_with_gradient",
        lambda _, info, **kwargs: losses.append(info.loss.item()) or [],
    )
    algorithm.train_iter()
    assert losses == [0.0]


@pytest.mark.parametrize(
    ("cls", "gamma", "bound", "expected"),
    [
        (PPOAlgorithm, 0.5, None, 0.5),
        (PPOAlgorithm, 0.5, 0.25, 0.25),
        (Reinforce, None, None, 0.99),
    ],
)
def test_metrics_and_reward_normalizer_have_the_gamma_of_the_algorithm(
    cls, gamma, bound, expected
):
    if bound is not None:
        gin.bind_parameter("create_metrics.gamma", bound)
        gin.bind_parameter("RewardNormalizer.gamma", bound)
    algorithm = make(
        cls, unroll_length=6, arguments={} if gamma is None else {"gamma": gamma}
    )
    assert algorithm.gamma == gamma
    normalizer = RewardNormalizer(algorithm.observation_spec)
    algorithm.data_transformer = SequentialDataTransformer(
        algorithm.observation_spec, data_transformer_ctors=[lambda *_: normalizer]
    )
    algorithm.train_iter()
    of_starts = algorithm.get_metrics()[-1]
    assert of_starts.result() == pytest.approx(1 + expected + expected**2)
    # Two steps after the second FIRST.
    assert normalizer.training_state_dict()["returns"].max() == pytest.approx(
        1 + expected
    )


@pytest.mark.parametrize(
    ("method", "flag"),
    [
        ("train_step_offline", "has_offline_loss"),
        ("calc_loss_offline", "has_offline_loss"),
        ("should_stop_updates", "stops_updates_early"),
    ],
)
def test_a_method_whose_flag_is_missing_is_an_error(method, flag):
    def never_called(self, *args):
        pytest.fail("it was")

    with pytest.raises(ConfigError, match=f"Own.{method} would never .*{flag} = True"):
        type("Own", (DqnAlgorithm,), {method: never_called})
    type("Own", (DqnAlgorithm,), {method: never_called, flag: True})
    with pytest.raises(ConfigError, match="trains_on_rollout_info = False"):
        type("Own", (Reinforce,), {"train_step": never_called})


def test_an_on_policy_algorithm_without_a_train_step_must_say_so():
    silent = type("Silent", (Reinforce,), {"trains_on_rollout_info": False})
    with pytest.raises(ConfigError, match="trains_on_rollout_info = True if"):
        make(silent)


@pytest.mark.parametrize("cls", [PPOAlgorithm, ActorCriticAlgorithm, Agent])
def test_unroll_with_grad_is_for_algorithms_without_a_train_step(cls):
    parts = {}
    if cls is Agent:
        parts = {
            "rl_algorithm_ctor": PPOAlgorithm,
            "entropy_target_ctor": EntropyTarget,
        }
    with pytest.raises(ConfigError, match=r"unroll_with_grad .*has a train_step"):
        make(cls, unroll_with_grad=True, arguments=parts)
    silent = type("Silent", (Reinforce,), {"trains_on_rollout_info": False})
    assert make(silent, unroll_with_grad=True).train_iter() == 8


def test_scalar_losses_are_added_to_the_mean():
    valid = torch.tensor([[True], [False]])
    both = aggregate_loss(
        LossInfo(loss=torch.tensor([[2.0], [100.0]]), scalar_loss=torch.tensor(0.5)),
        valid,
    )
    assert both.loss.item() == 2.5
    only = aggregate_loss(LossInfo(scalar_loss=torch.tensor(0.5)), valid)
    assert only.loss.item() == 0.5
    with pytest.raises(ValueError, match="without a loss"):
        aggregate_loss(LossInfo(), valid)


@pytest.mark.parametrize("shape", [(), (2,), (2, 3, 1), (3, 3), (2, 1), (0, 3)])
def test_a_loss_that_has_not_one_number_for_each_step_is_refused(shape):
    valid = torch.ones(2, 3, dtype=torch.bool)
    message = re.escape(
        "expected a loss [T, B] with T from 1 to 2 and B = 3, one number for each "
        f"step, got {list(shape)}"
    )
    with pytest.raises(ValueError, match=message):
        aggregate_loss(LossInfo(loss=torch.zeros(shape)), valid)


def test_a_scalar_loss_is_one_number():
    valid = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"expected a scalar_loss \[\], got \[2, 3\]"):
        aggregate_loss(LossInfo(scalar_loss=torch.zeros(2, 3)), valid)


class NaNLoss(PPOAlgorithm):
    def calc_loss(self, info):
        loss = super().calc_loss(info)
        if loss.extra == ():  # nobody looks at it
            return loss._replace(loss=loss.loss * float("nan"))
        entropy = loss.extra.entropy * float("nan")
        return loss._replace(
            loss=loss.loss + entropy, extra=loss.extra._replace(entropy=entropy)
        )


def test_a_loss_that_is_not_finite_names_its_part_and_changes_nothing():
    algorithm = make(NaNLoss)
    before = parameters_of(algorithm)
    with pytest.raises(DivergedError, match=r"NaNLoss: the loss is nan.*'entropy'"):
        algorithm.train_iter()
    assert torch.equal(parameters_of(algorithm), before)


class InfiniteGradient(PPOAlgorithm):
    def calc_loss(self, info):
        loss = super().calc_loss(info)
        # sqrt has an infinite slope at 0.
        return loss._replace(loss=loss.loss + (info.value - info.value).abs().sqrt())


def test_a_gradient_that_is_not_finite_names_its_parameters_and_changes_nothing():
    algorithm = make(InfiniteGradient)
    before = parameters_of(algorithm)
    with pytest.raises(DivergedError, match=r"gradient is not, of \['_value_network"):
        algorithm.train_iter()
    assert torch.equal(parameters_of(algorithm), before)


def test_reward_weights_are_kept_changed_and_checked():
    env = make_env(reward_size=2)
    algorithm = make(env=env, arguments={"reward_weights": [1.0, 0.5]})
    assert algorithm.has_multidim_reward
    assert algorithm.scalar_reward(torch.tensor([[2.0, 4.0]])).tolist() == [4.0]
    algorithm.set_reward_weights([0.0, 1.0])
    assert algorithm.reward_weights.tolist() == [0.0, 1.0]
    assert "_reward_weights.weights" in algorithm.state_dict()
    algorithm.train_iter()
    with pytest.raises(ValueError, match=r"expected \(2,\), got \(3,\)"):
        algorithm.set_reward_weights([1.0, 2.0, 3.0])


def test_reward_weights_must_fit_the_reward():
    with pytest.raises(ConfigError, match="3 reward_weights for a reward of 2"):
        make(env=make_env(reward_size=2), arguments={"reward_weights": [1, 2, 3]})
    with pytest.raises(ConfigError, match="only one dimension"):
        make(arguments={"reward_weights": [1.0]})
    with pytest.raises(ValueError, match="only one dimension"):
        make().set_reward_weights([1.0])
    with pytest.raises(ValueError, match="rank 0 or 1"):
        ActorCriticAlgorithm(
            TensorSpec((1,)), make_env().action_spec, reward_spec=TensorSpec((2, 2))
        )


def test_training_continues_from_the_saved_state():
    def advance(algorithm: RLAlgorithm, seed: int) -> None:
        algorithm.reset_environment(seed)
        torch.manual_seed(seed)
        for _ in range(2):
            algorithm.train_iter()

    def copy(state: Any) -> Any:
        return nest.map_structure(
            lambda x: x.clone() if isinstance(x, torch.Tensor) else x, state
        )

    original = make()
    advance(original, 1)
    saved = copy(dict(original.state_dict()))
    saved_training = copy(original.training_run.state_dict())
    advance(original, 2)

    resumed = make(seed=9)
    resumed.setup_training()
    resumed.load_state_dict(saved)
    resumed.training_run.load_state_dict(saved_training)
    advance(resumed, 2)
    assert torch.equal(parameters_of(resumed), parameters_of(original))
    names = ("EnvironmentSteps", "NumberOfEpisodes", "AverageReturn")
    for mine, other in zip(resumed.get_metrics(), original.get_metrics(), strict=True):
        if mine.name in names:
            assert mine.result() == other.result()


def test_optimizers_of_another_algorithm_are_refused():
    algorithm = make()
    state = algorithm.training_run.state_dict()
    state["optimizers"] = {"other": {}}
    with pytest.raises(CheckpointError, match=r"\['other'\]"):
        algorithm.training_run.load_state_dict(state)


def test_without_environment_there_is_nothing_to_unroll():
    algorithm = PPOAlgorithm(TensorSpec((1,)), make_env().action_spec)
    with pytest.raises(ConfigError, match="without env"):
        algorithm.unroll(1)
    with pytest.raises(ConfigError, match="without env"):
        algorithm.get_metrics()
    with pytest.raises(ConfigError, match="no config"):
        PPOAlgorithm(TensorSpec((1,)), make_env().action_spec, env=make_env())


class PPOWithoutRate(PPOAlgorithm):
    """Declares no learning rate, so that no optimizer steps in."""

    default_settings = DefaultSettings()


def test_a_parameter_without_optimizer_is_named():
    env = make_env()
    config = TrainerConfig(num_iterations=1)
    algorithm = PPOWithoutRate(
        env.observation_spec, env.action_spec, env=env, config=config
    )
    algorithm.add_optimizer(Adam(lr=0.1), [algorithm._value_network])
    with pytest.raises(ConfigError, match="_policy"):
        algorithm.train_iter()


def test_whether_it_is_on_policy_must_be_said():
    with pytest.raises(ConfigError, match="is_on_policy must be True or False, got"):
        RLAlgorithm(TensorSpec((1,)), TensorSpec((1,)), is_on_policy="both")


def test_who_can_do_both_needs_a_parent_that_decides():
    specs = TensorSpec((1,)), TensorSpec((1,))
    algorithm = RLAlgorithm(*specs, is_on_policy=None)
    with pytest.raises(ConfigError, match="no parent has said which"):
        _ = algorithm.on_policy
    algorithm.set_on_policy(False)
    assert not algorithm.on_policy
    with pytest.raises(ConfigError, match="is off-policy, but its parent"):
        algorithm.set_on_policy(True)


def test_a_conf_can_have_the_executed_action_stored():
    assert make(overwrite_policy_output=True).overwrite_policy_output
    assert not make().overwrite_policy_output


def test_two_optimizers_share_the_networks_between_them():
    algorithm = make(optimizer=Adam(lr=0.1))
    algorithm.add_optimizer(SGD(lr=0.0), [algorithm._value_network])
    before = {n: p.detach().clone() for n, p in algorithm.named_parameters()}
    algorithm.train_iter()
    changed = {n for n, p in algorithm.named_parameters() if not p.equal(before[n])}
    assert changed
    assert all(name.startswith("_policy") for name in changed)
    assert len(algorithm.optimizers()) == 2


def test_unrolls_end_with_a_bootstrap_row_and_keep_the_time_convention():
    experience = make().unroll(6)
    steps = experience.time_step
    assert steps.step_type[:, 0].tolist() == [0, 1, 1, 2, 0, 1, 1]
    assert steps.reward[:, 0].tolist() == [0, 1, 1, 1, 0, 1, 1]
    assert steps.discount[:, 0].tolist() == [1, 1, 1, 0, 1, 1, 1]
    after_first = steps.step_type[1:] != int(StepType.FIRST)
    prev = steps.prev_action[1:][after_first]
    assert torch.equal(prev, experience.action[:-1][after_first])
    assert (steps.prev_action[steps.step_type == int(StepType.FIRST)] == 0).all()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.skipif(
    shutil.which("g++") is None, reason="compiling needs a C++ compiler"
)
@pytest.mark.slow
@pytest.mark.parametrize(
    "cls", [PPOAlgorithm, ActorCriticAlgorithm, ImpalaAlgorithm, CorrectedPPO]
)
def test_compiled_training_gives_the_same_numbers(cls):
    def train(*, compiled: bool) -> RLAlgorithm:
        algorithm = make(cls, optimizer=Adam(lr=0.01), compile=compiled)
        if compiled:
            # What large batches do, on a small one.
            algorithm.training_run.collector._acts_in_large_batches = lambda: True
        for _ in range(3):
            algorithm.train_iter()
        return algorithm

    eager, compiled = train(compiled=False), train(compiled=True)
    assert not isinstance(
        compiled.training_run.updates._loss_functions[0], LossFunction
    )
    assert isinstance(eager.training_run.updates._loss_functions[0], LossFunction)
    assert compiled.training_run.collector._rollout_step != compiled.rollout_step
    assert eager.training_run.collector._rollout_step == eager.rollout_step
    torch.testing.assert_close(
        parameters_of(compiled), parameters_of(eager), atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("cls", ON_POLICY)
def test_reduced_precision_changes_the_updates_a_little(cls):
    def train(precision: str) -> RLAlgorithm:
        algorithm = make(cls, optimizer=Adam(lr=0.01), precision=precision)
        algorithm.train_iter()
        return algorithm

    exact, reduced = (parameters_of(train(p)) for p in ("float32", "bfloat16"))
    assert reduced.dtype == torch.float32
    assert not reduced.equal(exact)
    # Adam's first step is 0.01 in the direction of the gradient's sign.
    assert ((reduced - exact).abs() < 0.005).float().mean() > 0.9
