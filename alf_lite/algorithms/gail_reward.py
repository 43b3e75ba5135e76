"""Generative adversarial imitation: a reward for steps that experts could have made.

Ho and Ermon 2016, arXiv:1606.03476. A discriminator D(s, a) learns to tell the steps of
experts from own ones, and the reward is how much one's own look like theirs:

    min_D E_expert[−log D(s, a)] + E_own[−log(1 − D(s, a))]

With h the output before the sigmoid, D = σ(h), the reward of the step that a led to is

    "gail"  −log(1 − D) = softplus(h)      above 0: longer episodes are worth more
    "airl"  log D − log(1 − D) = h         of both signs, Fu et al. 2018, 1710.11248
    "log"   log D = −softplus(−h)          below 0: shorter episodes are worth more

The experts' steps are the sources of ``TrainerConfig.offline_buffer_dir``. Off-policy
they are part of every batch; on-policy as many as there are own ones are drawn for
every unroll.

Differences from the paper:

1. Any algorithm in place of TRPO; off-policy, own steps are those of the replay buffer,
   as in Kostrikov et al. 2019, arXiv:1809.02925, and the experts' are trained on, too.
   Each expectation counts by the share p of its rows, half by default: other
   ``mixing_ratios`` add log(p_expert / p_own) to h, and so to what is rewarded.
2. Which side D is near 1 on: here the experts', as in most later work.
3. A penalty on the gradient of h at the steps of both sides (Mescheder et al. 2018,
   arXiv:1801.04406), or spectral normalisation (Miyato et al. 2018, arXiv:1802.05957),
   keeps D from telling few steps apart by heart. Both depend on the scale of its
   inputs: observations are brought to deviation 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from alf_lite import nest
from alf_lite.algorithms.algorithm import valid_steps
from alf_lite.algorithms.parts.intrinsic_reward import IntrinsicReward
from alf_lite.algorithms.parts.novelty import (
    ActionVectors,
    NormalizedObservations,
    check_no_memory,
)
from alf_lite.config import configurable
from alf_lite.data_structures import AlgStep, BatchInfo, Field, LossInfo, TimeStep
from alf_lite.errors import ConfigError
from alf_lite.networks.encoding_networks import EncoderNetwork, EncodingNetwork
from alf_lite.networks.layers import Activation, check_sizes, linear, make_activation
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.checks import check_choice, check_not_negative
from alf_lite.utils.schedulers import Coefficient, Scheduled, is_zero, set_coefficients
from alf_lite.utils.tensor_utils import flatten_outer

Nest = Any

RewardForm = Literal["gail", "airl", "log"]


class GailSteps(NamedTuple):
    """Steps and what was done there."""

    observation: Nest  # [B, ...]
    action: Nest  # [B, ...]


class GailInfo(NamedTuple):
    """From ``preprocess_experience`` to ``train_step``."""

    action: Nest  # [T, B, ...] a_t
    is_expert: Tensor  # [T, B] bool
    expert: Any = ()  # GailSteps [T, B, ...], on-policy, beside as many own ones


class GailLossInfo(NamedTuple):
    """The parts of the loss, [T, B] each."""

    cross_entropy: Tensor
    accuracy: Tensor  # share that D is right about
    gradient_penalty: Field = ()


@configurable
class GailReward(IntrinsicReward):
    """How much a step looks like one of the experts'."""

    needs_recorded_steps = True

    _penalty_weight = Coefficient()

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        encoding_network_ctor: Callable[..., EncoderNetwork] = EncodingNetwork,
        fc_layer_params: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        reward_form: RewardForm = "gail",
        gradient_penalty: Scheduled = 0.1,
        use_spectral_norm: bool = False,
        observation_clip: float = 5.0,
        **kwargs: Any,
    ) -> None:
        """Builds the discriminator.

        Args:
            observation_spec: of one observation.
            action_spec: of one action; any nest with bounds.
            encoding_network_ctor: of the observation, called as
                ``ctor(observation_spec, fc_layer_params=())``; without memory.
            fc_layer_params: hidden layers of h.
            activation: of these layers.
            reward_form: "gail", "airl" or "log", see above.
            gradient_penalty: λ of λ ‖∇h‖², with respect to the encoded observation and
                the action.
            use_spectral_norm: keep the layers of h from stretching anything.
            observation_clip: bounds of the normalised observations.
            **kwargs: see :class:`IntrinsicReward`.

        Raises:
            ValueError: if an argument is out of range, or an observation or action is
                not supported.
        """
        check_not_negative(gradient_penalty=gradient_penalty)
        check_choice(RewardForm, reward_form=reward_form)
        super().__init__(observation_spec, action_spec, **kwargs)
        self._reward_form = reward_form
        set_coefficients(self, _penalty_weight=gradient_penalty)
        self._actions = ActionVectors(action_spec)
        self._observations = NormalizedObservations(observation_spec, observation_clip)
        self._encoder = encoding_network_ctor(
            self._observations.spec, fc_layer_params=()
        )
        check_no_memory(self._encoder)
        input_size = self._encoder.output_size + self._actions.size
        # Not layers.mlp, some of whose gradients have no gradient.
        sizes = [input_size, *check_sizes("fc_layer_params", fc_layer_params)]
        layers: list[nn.Module] = []
        for size, next_size in pairwise(sizes):
            layers += [linear(size, next_size), make_activation(activation)]
        layers.append(linear(sizes[-1], 1, gain=1.0))
        if use_spectral_norm:
            layers = [
                spectral_norm(layer) if isinstance(layer, nn.Linear) else layer
                for layer in layers
            ]
        self._h = nn.Sequential(*layers)

    @torch.no_grad()
    def calc_reward(self, steps: TimeStep, batch_info: BatchInfo) -> Tensor:
        """By h(s_{t-1}, a_{t-1}), [B, T]; in training statistics take the steps in."""
        if self.training:
            self._observations.update(steps.observation)
        shape = steps.step_type[:, 1:].shape
        earlier = GailSteps(
            nest.narrow(steps.observation, 0, -1, dim=1),
            nest.narrow(steps.prev_action, 1, None, dim=1),
        )
        h = self._h(self._vectors(flatten_outer(earlier))).view(shape)
        return functional.pad(self._reward(h), (1, 0))

    def _reward(self, h: Tensor) -> Tensor:
        if self._reward_form == "airl":
            return h
        if self._reward_form == "gail":
            return functional.softplus(h)
        return -functional.softplus(-h)

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: Nest, batch_info: BatchInfo
    ) -> tuple[TimeStep, GailInfo]:
        """What was done at each step, by whom, [B, T-1, ...]."""
        action = nest.narrow(root_inputs.prev_action, 1, None, dim=1)
        shape, device = root_inputs.step_type[:, 1:].shape, root_inputs.step_type.device
        is_expert = torch.zeros(shape, dtype=torch.bool, device=device)
        expert: Nest = ()
        if isinstance(batch_info.source, Tensor):
            from_source = (batch_info.source != 0).to(device)
            is_expert = from_source.unsqueeze(1).expand(shape)
        elif self.recorded_steps is not None:
            expert = self._draw(shape)
        else:
            raise ConfigError(
                f"{self.name} imitates recorded steps, and there are none. Set "
                "TrainerConfig.offline_buffer_dir."
            )
        return root_inputs, GailInfo(action, is_expert, expert)

    def _draw(self, shape: torch.Size) -> GailSteps:
        """Transitions of experts, [B, T, ...]."""
        assert self.recorded_steps is not None
        steps = self.recorded_steps(shape.numel(), 2).time_step
        # Nothing was done at the end of an episode: others take these places.
        is_valid = valid_steps(steps.step_type[:, 0])
        places = torch.arange(shape.numel(), device=is_valid.device)
        rows = is_valid.int().argsort(descending=True, stable=True)
        rows = rows[places % is_valid.sum().clamp(min=1)]
        drawn = GailSteps(
            nest.map_structure(lambda t: t[rows, 0], steps.observation),
            nest.map_structure(lambda t: t[rows, 1], steps.prev_action),
        )
        return nest.map_structure(lambda t: t.unflatten(0, shape), drawn)

    @property
    def slope_in_loss(self) -> str:
        """The setting by which the loss has the slope of a network in it, if any."""
        return "" if is_zero(self._penalty_weight) else "gradient_penalty"

    def train_step(
        self, inputs: TimeStep, state: Nest, rollout_info: GailInfo
    ) -> AlgStep:
        """The losses of own steps, of experts', or of a pair of both, [T·B]."""
        info = rollout_info
        own = GailSteps(inputs.observation, info.action)
        parts = self._losses(own, info.is_expert)
        if info.expert != ():
            others = self._losses(info.expert, torch.ones_like(info.is_expert))
            parts = nest.map_structure(lambda x, y: 0.5 * (x + y), parts, others)
        return AlgStep(info=parts)

    def calc_loss(self, info: GailLossInfo) -> LossInfo:
        """−log D of experts, −log(1 − D) of own steps, and λ ‖∇h‖², [T, B]."""
        loss = info.cross_entropy
        if isinstance(info.gradient_penalty, Tensor):
            loss = loss + self._penalty_weight * info.gradient_penalty
        return LossInfo(loss=loss, extra=info)

    def _losses(self, steps: GailSteps, is_expert: Tensor) -> GailLossInfo:
        """[B, ...] → [B]."""
        vectors = self._vectors(steps)
        penalizes = not is_zero(self._penalty_weight) and torch.is_grad_enabled()
        if penalizes and not vectors.requires_grad:
            vectors.requires_grad_()  # a copy of what was given
        h = self._h(vectors).squeeze(-1)
        penalty: Field = ()
        if penalizes:
            (gradient,) = torch.autograd.grad(h.sum(), vectors, create_graph=True)
            penalty = gradient.square().sum(-1)
        label = is_expert.to(h)
        cross_entropy = functional.binary_cross_entropy_with_logits(
            h, label, reduction="none"
        )
        return GailLossInfo(cross_entropy, ((h > 0) == is_expert).float(), penalty)

    def _vectors(self, steps: GailSteps) -> Tensor:
        """Encoded observation and action, [B, elements]."""
        features, _ = self._encoder(self._observations(steps.observation))
        return torch.cat([features, self._actions(steps.action)], -1)
