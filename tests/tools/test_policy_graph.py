"""Every kind of policy acts as a graph as it acts itself."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import Env, spaces
from torch.overrides import TorchFunctionMode

import alf_lite
from alf_lite.algorithms.parts.dynamics_ensemble import DynamicsEnsemble
from alf_lite.algorithms.parts.return_heads import CategoricalHead, QuantileHead
from alf_lite.algorithms.parts.trajectory_optimizers import CrossEntropy, Mppi
from alf_lite.data_transformers import (
    FrameStacker,
    ImageScaleTransformer,
    LifeLossDiscount,
    ObservationNormalizer,
    RewardNormalizer,
)
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ExportError
from alf_lite.networks import (
    ActorDistributionNetwork,
    GRUEncodingNetwork,
    LSTMEncodingNetwork,
    QNetwork,
)
from alf_lite.testing.masked_environment import ForbiddenActionEnv
from alf_lite.testing.structured_environments import ImageEnv, NestedEnv
from alf_lite.tools.policy_check import Comparison, compare, watch
from alf_lite.tools.policy_graph import PolicyGraph
from alf_lite.utils import random_state
from tests.algorithms.agent_toys import full_agent


class AnyEnv(Env):
    """Observes anything, checks that actions are in their space; five steps."""

    def __init__(self, observation_space=None, action_space=None):
        self.observation_space = observation_space or spaces.Box(-1, 1, (3,))
        self.action_space = action_space or spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._step = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._step += 1
        return self.observation_space.sample(), 1.0, self._step == 5, False, {}


class LivesEnv(ImageEnv):
    """Never loses a life, and says so."""

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        return observation, {**info, "life_lost": False}

    def step(self, action):
        *step, info = super().step(action)
        return *step, {**info, "life_lost": False}


@pytest.fixture(autouse=True)
def _generators_stay():
    with random_state.preserved():
        yield


class Kind(NamedTuple):
    algorithm: str
    make_env: Any = AnyEnv
    transformers: Any = None
    options: dict = {}  # noqa: RUF012

    def build(self) -> tuple[Any, Any]:
        """An untrained policy that tells observations apart, and its environments."""
        make_env = self.make_env
        if isinstance(make_env, spaces.Space):
            make_env = functools.partial(AnyEnv, action_space=make_env)
        env = create_environment(
            env_ctor=make_env,
            num_parallel_environments=2,
            seed=1,
            env_info_keys=["life_lost"] if make_env is LivesEnv else (),
        )
        random_state.seed_everything(3)
        config = alf_lite.TrainerConfig(data_transformer_ctor=self.transformers)
        policy = getattr(alf_lite, self.algorithm)(
            env=env, config=config, is_eval=True, **self.options
        ).eval()
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():
            for parameter in policy.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(0.3 * noise)
            for name, buffer in policy.named_buffers():
                if name.endswith(("mean", "variance")):
                    buffer.add_(0.5)
        policy.predict_epsilon = 0.0
        return policy, env


def compared(policy, env, path: Path, num_steps: int = 20) -> Comparison:
    graph = PolicyGraph(policy, env.recorded_values)
    torch.export.save(graph.traced(), path)
    watched, _ = watch(graph, env, env.recorded_values, num_steps, 0)
    actions = np.concatenate([np.ravel(step.action[0]) for step in watched.steps])
    assert len(np.unique(actions)) > 1, "a policy that tells nothing apart"
    return compare(graph, path, watched)


HALF_BOUNDED = spaces.Box(
    np.array([-2, 0, -np.inf], np.float32), np.array([2, 5, 1], np.float32)
)
BOUNDED = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 5.0]), dtype=np.float64)
MIXED = spaces.Dict({"a": spaces.Discrete(3, start=-1), "b": BOUNDED})
UNUSUAL = functools.partial(
    AnyEnv,
    spaces.Dict(
        {
            "image": spaces.Box(0, 255, (12, 12, 3), np.uint8),
            "kind": spaces.Tuple((spaces.Discrete(4, start=2),)),
            # One name in a graph
            "a pose": spaces.Box(-np.inf, np.inf, (3,), np.float64),
            "a_pose": spaces.Box(-1.0, 1.0, (3,)),
            "flag": spaces.MultiBinary(2),
        }
    ),
    spaces.MultiDiscrete([3, 4], start=[1, -2]),
)
BETA = functools.partial(ActorDistributionNetwork, continuous_projection="beta")
LSTM = functools.partial(
    ActorDistributionNetwork, encoding_network_ctor=LSTMEncodingNetwork
)
GRU = functools.partial(QNetwork, encoding_network_ctor=GRUEncodingNetwork)
FORBIDDEN = functools.partial(ForbiddenActionEnv, spaces.MultiDiscrete([3, 4]))
MASK = {"action_mask_key": "action_mask"}

KINDS = {
    "unbounded": Kind("ActorCriticAlgorithm", HALF_BOUNDED),
    "unusual": Kind("PPOAlgorithm", UNUSUAL),
    "nested": Kind("PPOAlgorithm", NestedEnv),
    "masked": Kind("PPOAlgorithm", FORBIDDEN, None, MASK),
    "beta": Kind(
        "PPOAlgorithm",
        BOUNDED,
        [RewardNormalizer, ObservationNormalizer],
        {"actor_network_ctor": BETA},
    ),
    "LSTM": Kind("PPOAlgorithm", AnyEnv, None, {"actor_network_ctor": LSTM}),
    "SAC": Kind("SacAlgorithm", BOUNDED, ObservationNormalizer),
    "mixed SAC": Kind("SacAlgorithm", MIXED),
    "DDPG": Kind("DdpgAlgorithm", BOUNDED),
    "TD3": Kind("Td3Algorithm", BOUNDED),
    "BC": Kind("BcAlgorithm"),
    "IQL": Kind("IqlAlgorithm", BOUNDED),
    "images": Kind(
        "DqnAlgorithm",
        LivesEnv,
        [FrameStacker, LifeLossDiscount, ImageScaleTransformer],
    ),
    "GRU": Kind(
        "DqnAlgorithm",
        AnyEnv,
        functools.partial(FrameStacker, stack_size=3),
        {"q_network_ctor": GRU},
    ),
    "C51": Kind(
        "DqnAlgorithm",
        FORBIDDEN,
        None,
        {"return_model": CategoricalHead(num_atoms=7), **MASK},
    ),
    "quantiles": Kind(
        "DqnAlgorithm", AnyEnv, None, {"return_model": QuantileHead(num_quantiles=7)}
    ),
    "agent": Kind("Agent", AnyEnv, None, full_agent(alf_lite.PPOAlgorithm).keywords),
    "MBRL": Kind(
        "MbrlAlgorithm",
        BOUNDED,
        ObservationNormalizer,
        {
            "planner": CrossEntropy(12, 3, 2),
            "model_ctor": functools.partial(
                DynamicsEnsemble, num_members=2, fc_layer_params=(8,)
            ),
            "num_particles": 2,
            "trajectory_sampling": "ts1",
            "horizon": 3,
        },
    ),
    "TD-MPC2": Kind(
        "Tdmpc2Algorithm",
        BOUNDED,
        None,
        {
            "planner": Mppi(16, 4, 2),
            "num_policy_trajectories": 4,
            "gamma": 0.9,
            "latent_size": 16,
            "encoder_fc_layer_params": (16,),
            "fc_layer_params": (16,),
        },
    ),
}


# Those that have the most between observation and action.
_FAST = ("agent", "beta", "images", "LSTM", "unusual")


@pytest.mark.ci
@pytest.mark.parametrize(
    "kind",
    [
        name if name in _FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in KINDS
    ],
)
def test_graph_acts_as_the_policy(kind, tmp_path):
    policy, env = KINDS[kind].build()
    result = compared(policy, env, tmp_path / "policy.pt2")
    assert result.largest_difference < 1e-5
    assert result.num_ties < result.num_actions / 10


def test_a_graph_keeps_the_plan_of_the_step_before(tmp_path):
    policy, env = KINDS["TD-MPC2"].build()
    graph = PolicyGraph(policy, env.recorded_values)
    plan = next(port for port in graph.inputs if port.role == "state")
    assert plan.shape == (3, 2)
    observation, is_first, state = graph.example()
    with torch.no_grad():
        actions, following = graph(observation, ~is_first, state + 0.5)
        fresh, _ = graph(observation, is_first, state + 0.5)
        again, _ = graph(observation, is_first, state)
    assert following.shape == (2, 3, 2)
    assert not torch.allclose(actions, again)
    assert torch.equal(fresh, again)


def test_no_switch_of_gradients_is_in_a_graph(monkeypatch):
    # Each that is there costs torch another pass over the whole graph
    policy, env = KINDS["MBRL"].build()
    graph = PolicyGraph(policy, env.recorded_values)
    called = []

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            called.append(func)
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with torch.no_grad(), Watching():
        graph(*graph.example())
    assert len(called) > 100
    assert torch._C._set_grad_enabled not in called


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["mixed SAC", "agent"])  # which draws goals, too
def test_sampled_actions_follow_from_the_noise(kind, tmp_path):
    policy, env = KINDS[kind].build()
    policy.predict_epsilon = 1.0
    graph = PolicyGraph(policy, env.recorded_values)
    assert {port.role for port in graph.inputs} >= {"noise"}
    assert compared(policy, env, tmp_path / "policy.pt2").largest_difference < 1e-5


class _Branching(torch.nn.Module):
    """Its graph would depend on what it sees."""

    def __init__(self, observation_spec: Any, action_spec: Any) -> None:
        super().__init__()
        self._linear = torch.nn.Linear(observation_spec.numel, 3)

    def forward(self, observation: Any) -> Any:
        if observation.sum() > 0:
            observation = -observation
        return torch.distributions.Categorical(logits=self._linear(observation))


class _RewardReader(alf_lite.BcAlgorithm):
    def predict_step(self, inputs: Any, state: Any) -> Any:
        step = super().predict_step(inputs, state)
        return step._replace(output=(step.output + inputs.reward.long()) % 3)


def test_what_has_no_graph_is_named(tmp_path):
    options = {"actor_network_ctor": _Branching}
    policy, env = Kind("PPOAlgorithm", options=options).build()
    with pytest.raises(ExportError, match=r"_Branching.forward .*test_policy_graph.py"):
        compared(policy, env, tmp_path / "policy.pt2")
    # ε-greedy and gamma noise cannot be given from outside.
    for kind in ("quantiles", "beta"):
        policy, env = KINDS[kind].build()
        policy.predict_epsilon = 1.0
        with pytest.raises(ExportError, match="draws random numbers by"):
            compared(policy, env, tmp_path / "policy.pt2")


@pytest.mark.ci
def test_policy_that_reads_more_than_observations_differs(tmp_path):
    policy, env = Kind("BcAlgorithm").build()
    policy.__class__ = _RewardReader
    result = compared(policy, env, tmp_path / "policy.pt2")
    assert result.largest_difference == 1.0


@pytest.mark.parametrize(("margin", "difference"), [(2e-7, 0.0), (1e-3, 1.0)])
def test_choice_between_equal_values_is_a_tie(margin, difference, tmp_path):
    policy, env = Kind("BcAlgorithm").build()
    head = next(m for m in policy.modules() if getattr(m, "out_features", 0) == 3)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(1.0)
        head.bias[0] += margin
    graph = PolicyGraph(policy, env.recorded_values)
    watched, _ = watch(graph, env, env.recorded_values, 6, 0)
    with torch.no_grad():
        head.bias[2] += 2 * margin
        torch.export.save(graph.traced(), tmp_path / "policy.pt2")
        head.bias[2] = 1.0
    result = compare(graph, tmp_path / "policy.pt2", watched)
    assert result.largest_difference == difference
    assert (result.num_ties == result.num_actions) == (difference == 0.0)
