"""TD-MPC2: planning in the latent space of a model that is learnt for its values.

Hansen et al., "TD-MPC2: Scalable, Robust World Models for Continuous Control",
arXiv:2310.16828. An encoder h, dynamics d, reward R, continue C, five action values Q
and a policy π, all on latents z that :func:`simnorm` keeps on simplices:

    z_0 = h(s_t),   z_{k+1} = d(z_k, a_{t+k}),   ρ_k = ρ^k / H,   k = 0 … H-1
    L = Σ_k ρ_k [20 MSE(z_{k+1}, sg h(s_{t+k+1})) + 0.1 CE(R(z_k, a_{t+k}), r_{t+k+1})
                 + 0.1 mean_i CE(Q_i(z_k, a_{t+k}), y_k) + BCE(C(z_{k+1}), d_{t+k+1})]
    y_k = r_{t+k+1} + γ d_{t+k+1} min of two Q⁻(h(s_{t+k+1}), π)
    L_π = −mean_k ρ^k (mean of two Q(z_k, π) / S + β entropy)

Acting refines a plan of H actions by MPPI, with the value of

    Σ_k γ^k (Π_{j≤k} c_j) r_k + γ^H (Π_{j≤H} c_j) Q(z_H, π(z_H)),   c_j = C(z_j)

and keeps its mean, one step on, for the next step.

Differences from the reference code:

1. Any number of environments plan side by side.
2. The end of an episode is learnt at every step of a window and is in the value of a
   plan; nothing after a LAST is trained. The reference cuts windows there.
3. A plan is valued by the mean of all Q, and Q have no dropout.
4. ``predict_step`` is deterministic: fixed noise, and the best sequence of the last
   iteration. The reference draws one of the elites.
5. One Adam trains all, unless ``encoder_optimizer`` and ``policy_optimizer`` are given;
   the reference has 0.3 of the learning rate for the encoder.
6. There is no burst of updates after the random steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from alf_lite import nest
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.parts import transitions
from alf_lite.algorithms.parts.critics import TargetUpdater, target_copy
from alf_lite.algorithms.parts.return_heads import TwoHotHead
from alf_lite.algorithms.parts.trajectory_optimizers import Mppi, Plan, ValueFn
from alf_lite.algorithms.parts.window_targets import steps_from
from alf_lite.algorithms.planning_algorithm import PlanningAlgorithm
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import (
    AlgStep,
    BatchInfo,
    Field,
    LossInfo,
    StepType,
    TimeStep,
)
from alf_lite.errors import ConfigError
from alf_lite.networks.critic_networks import ParallelMLP
from alf_lite.networks.encoding_networks import EncodingNetwork
from alf_lite.networks.layers import mlp
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.checks import check_positive, check_unit_interval
from alf_lite.utils.diagnostics import diagnostic
from alf_lite.utils.ranks import ranks
from alf_lite.utils.tensor_utils import flatten_outer

Nest = Any


class Window(NamedTuple):
    """H steps from a step on, and what they led to."""

    observation: Nest  # [B, H+1, ...] s_t … s_{t+H}
    action: Tensor  # [B, H, A] a_t … in [-1, 1]
    reward: Tensor  # [B, H] r_{t+1} …
    discount: Tensor  # [B, H] d_{t+1} …, without γ
    valid: Tensor  # [B, H] bool, whether the episode goes on from that step


class Tdmpc2Info(NamedTuple):
    """The parts of the loss, summed over a window, [T, B] each."""

    consistency: Tensor
    reward: Tensor
    value: Tensor
    continues: Tensor
    policy: Tensor
    policy_value: Tensor  # Q(z_0, π(z_0)), what S follows
    clipped_values: Field = ()  # share of y beyond the atoms, if somebody looks
    clipped_rewards: Field = ()  # likewise


class _Model(nn.Module):
    """d, R, C, Q and π of latents, for actions [..., A]."""

    def __init__(
        self, latent: int, action: int, hidden: Sequence[int], groups: int, bins: int
    ) -> None:
        super().__init__()
        self.groups = groups
        self.dynamics = _network(latent + action, hidden, latent, normed=True)
        self.reward = _network(latent + action, hidden, bins, zero=True)
        self.goes_on = _network(latent, hidden, 1)
        self.policy = _network(latent, hidden, 2 * action)

    def step(self, z: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """(z', logits of the reward)."""
        inputs = torch.cat([z, action], -1)
        return simnorm(self.dynamics(inputs), self.groups), self.reward(inputs)

    def act(self, z: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        """tanh(μ + σ ε) [..., A], and the entropy term; ``noise`` None: ε = 0."""
        mean, raw_std = self.policy(z).chunk(2, -1)
        return squashed(mean, raw_std, noise)


@configurable(defaults={"horizon": 3})
class Tdmpc2Algorithm(PlanningAlgorithm):
    """TD-MPC2 for continuous actions with bounds.

    Args:
        observation_spec: of one observation.
        action_spec: of one action: boxes.
        gamma: γ; None: by ``episode_length``, see :func:`discount_of`.
        episode_length: steps of an episode, action repeat taken off.
        num_policy_trajectories: sequences of π among the samples of the planner.
        latent_size: elements of z.
        simnorm_size: elements of a simplex.
        encoder_fc_layer_params: hidden layers of h.
        fc_layer_params: hidden layers of all others.
        num_critics: number of Q, at least 2.
        rho: ρ, what a step counts less than the one before.
        entropy_weight: β.
        target_update_tau: τ of Q⁻.
        encoder_optimizer: of h; None: ``optimizer`` trains it, too.
        policy_optimizer: of π; likewise.
        **kwargs: see :class:`PlanningAlgorithm`. Windows have H + 1 steps.

    Raises:
        ValueError: if the action is not a box or a number is out of range.
        ConfigError: if windows are too short, or γ is given twice or not at all.
    """

    default_planner = Mppi
    _scale: Tensor  # [] S

    # Table 8 of the paper: an update for every step; windows have one step more than H.
    default_settings = DefaultSettings(
        updates_per_env_step=1.0,
        unroll_length=1,
        mini_batch_size=256,
        mini_batch_length=4,
        replay_buffer_length=1_000_000,
        initial_collect_steps=1000,
        initial_random_policy=True,
        lr=3e-4,
        gradient_clipping=20.0,
    )

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        gamma: float | None = None,
        episode_length: int | None = None,
        num_policy_trajectories: int = 24,
        latent_size: int = 512,
        simnorm_size: int = 8,
        encoder_fc_layer_params: Sequence[int] = (256,),
        fc_layer_params: Sequence[int] = (512, 512),
        num_critics: int = 5,
        rho: float = 0.5,
        entropy_weight: float = 1e-4,
        target_update_tau: float = 0.01,
        encoder_optimizer: Optimizer | None = None,
        policy_optimizer: Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        name = type(self).__name__
        gamma = _discount(name, gamma, episode_length)
        check_unit_interval(rho=rho)
        check_positive(simnorm_size=simnorm_size)
        if latent_size % simnorm_size or num_critics < 2:
            raise ValueError(
                f"{name}: expected latent_size a multiple of simnorm_size, num_critics"
                f" at least 2; got {latent_size}, {simnorm_size} and {num_critics}"
            )
        super().__init__(observation_spec, action_spec, gamma=gamma, **kwargs)
        self.num_bootstrap_steps, size = self._horizon, self._actions.vector_size
        transitions.check_windows(self._config, self._horizon, "horizon")
        self._rho, self._beta = rho, entropy_weight
        self._num_policy = num_policy_trajectories
        if not 0 <= num_policy_trajectories < self._planner.num_samples:
            raise ValueError(
                f"{name}: num_policy_trajectories must be at least 0, and less than "
                f"the num_samples={self._planner.num_samples} of the planner that they "
                f"are among, got {num_policy_trajectories}"
            )
        self._head = TwoHotHead("symlog", -10.0, 10.0, bins=101)
        self._build_encoder(latent_size, encoder_fc_layer_params)
        bins = self._head.num_outputs
        self._model = _Model(latent_size, size, fc_layer_params, simnorm_size, bins)
        self._q = ParallelMLP(
            num_critics,
            latent_size + size,
            fc_layer_params,
            bins,
            "mish",
            layer_norm=True,
            last_initializer="zeros",
        )
        if self._is_eval:
            return
        self._target_q = target_copy(self._q)
        self._updater = TargetUpdater(
            [self._q], [self._target_q], tau=target_update_tau
        )
        self.register_buffer("_scale", torch.ones(()))
        if encoder_optimizer is not None:
            self.add_optimizer(encoder_optimizer, [self._encoder, self._to_latent])
        if policy_optimizer is not None:
            self.add_optimizer(policy_optimizer, [self._model.policy])

    def _build_encoder(self, latent_size: int, hidden: Sequence[int]) -> None:
        self._encoder = EncodingNetwork(
            self._observation_spec,
            fc_layer_params=hidden,
            activation="mish",
            layer_norm=True,
        )
        self._to_latent = nn.Sequential(
            nn.Linear(self._encoder.output_size, latent_size),
            nn.LayerNorm(latent_size),
        )

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """Q⁻."""
        return [self._target_q]

    # Acting

    def _outlook(
        self, observation: Nest, noise: Tensor | None
    ) -> tuple[ValueFn, Tensor | None]:
        z = self._encode(observation)
        candidates = self._policy_sequences(z, noise) if self._num_policy else None
        return lambda actions: self._value_of(z, actions), candidates

    def _first_action(self, plan: Plan, explores: bool) -> Tensor:
        """That of the best sequence.

        Where it explores, of one drawn by the weights, with noise of the plan's
        deviation.
        """
        if not explores:
            return plan.elites[:, 0, 0]
        chosen = plan.weights.multinomial(1)[:, 0]
        rows = torch.arange(chosen.shape[0], device=chosen.device)
        action = plan.elites[rows, chosen, 0]
        return (action + plan.std[:, 0] * torch.randn_like(action)).clamp(-1, 1)

    def _policy_sequences(self, z: Tensor, noise: Tensor | None) -> Tensor:
        """What π does, [B, M, H, A]."""
        z = z.unsqueeze(1).expand(-1, self._num_policy, -1)
        actions = []
        for k in range(self._horizon):
            if noise is None:
                epsilon = self._noise_like(z)
            else:
                epsilon = noise[0, : self._num_policy, k].expand(z.shape[0], -1, -1)
            action, _ = self._model.act(z, epsilon)
            actions.append(action)
            z, _ = self._model.step(z, action)
        return torch.stack(actions, 2)

    def _value_of(self, z: Tensor, actions: Tensor) -> Tensor:
        """[B, N] of sequences [B, N, H, A] from z [B, Z]; see the top of this file."""
        z = z.unsqueeze(1).expand(-1, actions.shape[1], -1)
        value, discount = torch.zeros_like(z[..., 0]), torch.ones_like(z[..., 0])
        for k in range(self._horizon):
            z, reward = self._model.step(z, actions[:, :, k])
            value = value + discount * self._head.mean(reward)
            goes_on = self._model.goes_on(z).squeeze(-1).sigmoid()
            discount = self._gamma * discount * goes_on
        action, _ = self._model.act(z, None)
        inputs = torch.cat([z, action], -1).flatten(0, 1)
        q = self._head.mean(self._q(inputs)).mean(0)
        return value + discount * q.view_as(value)

    def _encode(self, observation: Nest) -> Tensor:
        features, _ = self._encoder(observation)
        return simnorm(self._to_latent(features), self._model.groups)

    # Learning

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: Nest, batch_info: BatchInfo
    ) -> tuple[TimeStep, Window]:
        """Windows [B, T-H, ...] that begin at each of the first T-H steps."""
        steps, h = root_inputs, self._horizon
        rows = transitions.num_trained(steps, h)
        flat = flatten_outer(steps.prev_action)
        action = self._actions.to_vector(flat).unflatten(0, steps.step_type.shape)
        is_last = steps.step_type == int(StepType.LAST)
        window = Window(
            steps_from(steps.observation, 0, h + 1, rows),
            steps_from(action, 1, h, rows),
            steps_from(steps.reward, 1, h, rows),
            steps_from(steps.discount, 1, h, rows),
            ~steps_from(is_last, 0, h, rows).cummax(-1).values,
        )
        return nest.narrow(steps, 0, rows, dim=1), window

    def train_step(
        self, inputs: TimeStep, state: Nest, rollout_info: Window
    ) -> AlgStep:
        """Unrolls the model over windows [B, H+1, ...]."""
        w = rollout_info
        following = nest.map_structure(lambda t: t[:, 1:], w.observation)
        with torch.no_grad():
            targets = self._encode(following)  # [B, H, Z]
            y = w.reward + self._gamma * w.discount * self._target_value(targets)
        z = self._encode(nest.map_structure(lambda t: t[:, 0], w.observation))
        zs, rewards = [z], []
        for k in range(self._horizon):
            z, reward = self._model.step(z, w.action[:, k])
            zs.append(z)
            rewards.append(reward)
        latents = torch.stack(zs, 1)  # [B, H+1, Z]
        q = self._q_of(self._q, latents[:, :-1], w.action)
        powers = self._rho ** torch.arange(self._horizon + 1, device=z.device)

        def total(loss: Tensor) -> Tensor:
            """Σ_k ρ_k over the steps [B, H] before the end of the episode."""
            loss = torch.where(w.valid, loss, 0.0)
            return (loss * powers[:-1]).sum(1) / self._horizon

        goes_on = self._model.goes_on(latents[:, 1:]).squeeze(-1)
        policy, policy_value = self._policy_loss(latents.detach())
        # z_k for k > 0 is that of a step only where step k-1 did not end the episode.
        reached = torch.cat([torch.ones_like(w.valid[:, :1]), w.valid], 1)
        policy = torch.where(reached, policy, 0.0) * powers
        info = Tdmpc2Info(
            total((latents[:, 1:] - targets).square().mean(-1)),
            total(self._head.fit(torch.stack(rewards, 1), w.reward)),
            total(self._head.fit(q, y).mean(0)),
            total(
                F.binary_cross_entropy_with_logits(
                    goes_on, w.discount, reduction="none"
                )
            ),
            policy.mean(1),
            policy_value[:, 0],
            *diagnostic(lambda: [self._clipped(x, w.valid) for x in (y, w.reward)]),
        )
        return AlgStep(info=info)

    def _clipped(self, targets: Tensor, valid: Tensor) -> Tensor:
        """The share of targets [B, H] beyond the atoms, [B]."""
        return torch.where(valid, self._head.is_clipped(targets), 0.0).mean(1)

    def _target_value(self, z: Tensor) -> Tensor:
        """The smaller of two random Q⁻(z, π(z)), [B, H]."""
        action, _ = self._model.act(z, self._noise_like(z))
        q = self._head.mean(self._q_of(self._target_q, z, action))
        return q[self._two(z.device)].amin(0)

    def _policy_loss(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Of π at z [B, H+1, Z], and the mean of two Q; no gradient to Q."""
        action, entropy = self._model.act(z, self._noise_like(z))
        parameters = {name: p.detach() for name, p in self._q.named_parameters()}
        inputs = torch.cat([z, action], -1)
        outputs = functional_call(self._q, parameters, (inputs.flatten(0, 1),))
        value = self._head.mean(outputs)[self._two(z.device)].mean(0)
        value = value.view(z.shape[:2])
        return -(value / self._scale + self._beta * entropy), value.detach()

    def _q_of(self, q: nn.Module, z: Tensor, action: Tensor) -> Tensor:
        """[n, B, K, bins] of [B, K, ...]."""
        inputs = torch.cat([z, action], -1)
        return q(inputs.flatten(0, 1)).unflatten(1, inputs.shape[:2])

    def _noise_like(self, z: Tensor) -> Tensor:
        return torch.randn(*z.shape[:-1], self._actions.vector_size, device=z.device)

    def _two(self, device: torch.device) -> Tensor:
        number = self._target_q._output_layer.num_members
        return torch.randperm(number, device=device)[:2]

    def calc_loss(self, info: Tdmpc2Info) -> LossInfo:
        """The sum, with the weights of the paper's code."""
        loss = 20 * info.consistency + 0.1 * (info.reward + info.value)
        return LossInfo(loss=loss + info.continues + info.policy, extra=info)

    def after_update(self, root_inputs: TimeStep, info: Tdmpc2Info) -> None:
        """Moves Q⁻ and S."""
        self._updater.forward()
        valid = valid_steps(root_inputs.step_type)
        values = torch.where(valid, info.policy_value.detach(), math.nan)
        if ranks.size > 1:  # of the batches of all
            values = ranks.gather(values)
        self._scale.lerp_(value_range(values), 0.01)


def simnorm(x: Tensor, size: int) -> Tensor:
    """Softmax over groups of ``size`` elements, section 3.1: [..., Z] → [..., Z]."""
    return x.unflatten(-1, (-1, size)).softmax(-1).flatten(-2)


def squashed(
    mean: Tensor, raw_std: Tensor, noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Actions tanh(μ + σ ε) and −A log N(ε; σ), the entropy of the paper's code.

    log σ = −10 + 6 (tanh(raw_std) + 1). That of the normal distribution, before tanh.
    """
    if noise is None:
        return mean.tanh(), mean.new_zeros(mean.shape[:-1])
    log_std = -10 + 6 * (raw_std.tanh() + 1)
    # log(2π) / 2 = 0.9189385
    log_prob = (-0.5 * noise.square() - log_std - 0.9189385).sum(-1)
    action = (mean + log_std.exp() * noise).tanh()
    return action, -mean.shape[-1] * log_prob


def value_range(values: Tensor) -> Tensor:
    """max(1, p95 − p5) of any number of values, what S moves towards.

    NaN stands for none: its row starts no transition.
    """
    ends = torch.linspace(0.05, 0.95, 2, device=values.device)
    low, high = values.flatten().nanquantile(ends)
    return (high - low).nan_to_num(1.0).clamp(min=1.0)


def discount_of(episode_length: int) -> float:
    """γ = clip((L/5 − 1) / (L/5), 0.95, 0.995), appendix H."""
    check_positive(episode_length=episode_length)
    return min(max(1 - 5 / episode_length, 0.95), 0.995)


def _discount(name: str, gamma: float | None, episode_length: int | None) -> float:
    """γ, of the one of the two that is given."""
    if gamma is None and episode_length is not None:
        return discount_of(episode_length)
    if gamma is None or episode_length is not None:
        raise ConfigError(
            f"{name}: set one of gamma and episode_length, got gamma={gamma} and "
            f"episode_length={episode_length}"
        )
    return gamma


def _network(
    size: int,
    hidden: Sequence[int],
    outputs: int,
    *,
    normed: bool = False,
    zero: bool = False,
) -> nn.Sequential:
    """Hidden layers of Linear, LayerNorm, Mish, and a linear one."""
    last = nn.Linear([size, *hidden][-1], outputs)
    nn.init.zeros_(last.bias)
    if zero:
        nn.init.zeros_(last.weight)
    layers = [mlp(size, hidden, "mish", layer_norm=True), last]
    return nn.Sequential(*layers, *([nn.LayerNorm(outputs)] if normed else []))
