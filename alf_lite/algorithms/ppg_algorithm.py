"""Phasic policy gradient: PPO with phases that distil the value into the policy.

Cobbe, Hilton, Klimov and Schulman, "Phasic Policy Gradient", arXiv:2009.04416,
algorithm 1.

Differences from the paper:

1. Both phases use the same optimizers; the paper has a second one for the auxiliary
   phase, with the same learning rate.
2. The value network is trained in the auxiliary phase on the mini-batches of the
   policy, as in the paper, and in the policy phase in the same passes: E_π = E_V.
3. The value targets of the auxiliary phase are those of the policy phase (GAE). The
   paper normalises rewards; here, the policy's head learns the targets at mean 0 and
   deviation 1, so that β_clone holds the policy whatever the scale of the rewards.
4. A step that ends by a time limit is bootstrapped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.algorithms.learning.update_summaries import write_means
from alf_lite.algorithms.learning.updates import update_with_gradient
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import DefaultSettings, configurable
from alf_lite.data_structures import BatchInfo, Experience, LossInfo, TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.errors import ConfigError
from alf_lite.networks.batch_norm import trained_rows
from alf_lite.networks.layers import linear
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils import losses, summary
from alf_lite.utils.checks import check_not_negative, check_positive
from alf_lite.utils.normalizers import Normalizer
from alf_lite.utils.ranks import ranks, share_statistics
from alf_lite.utils.schedulers import Coefficient, Scheduled, set_coefficients

Nest = Any


class AuxiliaryRows(NamedTuple):
    """What the auxiliary phase learns from, [rows, ...]."""

    observation: Nest
    value_target: Tensor  # [rows] or [rows, D]
    valid: Tensor  # [rows] bool, steps with a transition


class AuxiliaryLossInfo(NamedTuple):
    """The parts of the auxiliary loss, [] each, means over the valid steps."""

    auxiliary_value_loss: Tensor  # of the head on the policy's features
    clone_kl: Tensor  # KL(π_old ‖ π)
    value_loss: Tensor  # of the value network


@configurable
class PPGAlgorithm(PPOAlgorithm):
    """PPO whose policy also predicts values, from time to time.

    The policy phase is that of :class:`PPOAlgorithm`. After ``auxiliary_period`` of its
    iterations, the policy network learns the values of all steps since the last
    auxiliary phase by a head of its own, while its distributions are kept by a KL
    divergence; the value network learns them, too.
    """

    # Cobbe et al. 2020, table of appendix A: 64 environments x 256 steps in 8
    # mini-batches, one pass.
    default_settings = DefaultSettings(
        num_parallel_environments=64,
        unroll_length=256,
        epochs=1,
        mini_batch_size=2048,
        mini_batch_length=1,
        lr=5e-4,
        gradient_clipping=0.5,
    )

    _clone_weight = Coefficient()

    def __init__(
        self,
        *specs: Any,
        auxiliary_period: int = 32,
        auxiliary_epochs: int = 6,
        auxiliary_mini_batch_size: int = 4096,
        clone_weight: Scheduled = 1.0,
        **kwargs: Any,
    ) -> None:
        """Builds the networks; see :class:`PPOAlgorithm` for what is not here.

        Args:
            auxiliary_period: N_π, iterations of the policy phase.
            auxiliary_epochs: E_aux, passes over the steps of these.
            auxiliary_mini_batch_size: steps of a mini-batch of the auxiliary phase.
            clone_weight: β_clone, the weight of KL(π_old ‖ π).

        Raises:
            ValueError: if a coefficient is out of its range.
            ConfigError: if the policy has a memory, or its network no features for the
                head, or unrolls differ in their length.
        """
        check_positive(
            auxiliary_period=auxiliary_period,
            auxiliary_epochs=auxiliary_epochs,
            auxiliary_mini_batch_size=auxiliary_mini_batch_size,
        )
        check_not_negative(clone_weight=clone_weight)
        super().__init__(*specs, **kwargs)
        self._auxiliary_period = auxiliary_period
        self._auxiliary_epochs = auxiliary_epochs
        self._auxiliary_mini_batch_size = ranks.share_of(
            auxiliary_mini_batch_size,
            f"{type(self).__name__}.auxiliary_mini_batch_size",
        )
        set_coefficients(self, _clone_weight=clone_weight)
        self._latest: AuxiliaryRows | None = None  # of the unroll that is trained on
        self._memory: UnrollMemory | None = None
        if self._is_eval:
            return
        self._require_no_memory("actor_network_ctor")
        network: Any = self._policy.network
        if not hasattr(network, "with_features"):
            raise ConfigError(
                f"{self.name}: {type(network).__name__} does not tell the features "
                "that a value head could see. Give it with_features and "
                "num_features as ActorDistributionNetwork has them, or use that one."
            )
        self._auxiliary_head = linear(network.num_features, self.reward_spec.numel, 0.1)
        self._target_normalizer = Normalizer(self.reward_spec)
        if self._config is not None and self._config.unroll_episodes is not None:
            raise ConfigError(
                f"{self.name} stores unrolls of one length: it cannot be trained with "
                "TrainerConfig.unroll_episodes"
            )
        if self._env is not None:
            self.set_num_environments(self._env.batch_size)

    def set_num_environments(self, num_environments: int) -> None:
        """Makes room for the unrolls of a period."""
        if self._is_eval or self._config is None:
            return
        symmetric = self._symmetric_unroll
        num_views = 1 if symmetric is None else symmetric.num_views
        self._memory = UnrollMemory(
            self._observation_spec,
            self.reward_spec,
            num_unrolls=self._auxiliary_period,
            num_rows=num_environments * int(self._config.unroll_length) * num_views,
        )

    @property
    def training_only_modules(self) -> list[nn.Module]:
        """Also the head, what scales its targets, and the stored steps."""
        own = [self._auxiliary_head, self._target_normalizer, self._memory]
        return [*super().training_only_modules, *(m for m in own if m is not None)]

    def preprocess(
        self, experience: Experience, valid: Tensor, batch_info: BatchInfo
    ) -> TrainingBatch:
        """Also notes what the auxiliary phase will learn from the unroll."""
        batch = super().preprocess(experience, valid, batch_info)
        info = batch.rollout_info
        rows = AuxiliaryRows(batch.inputs.observation, info.value_target, info.valid)
        # Without the bootstrap row, [B, T, ...] → [B·T, ...]
        self._latest = nest.map_structure(lambda t: t[:, :-1].flatten(0, 1), rows)
        return batch

    def after_train_iter(self, root_inputs: TimeStep, rollout_info: Nest) -> None:
        """Stores the unroll; after ``auxiliary_period`` of them, the phase."""
        super().after_train_iter(root_inputs, rollout_info)
        if self._memory is None and self._config is not None:
            raise ConfigError(
                f"{self.name} stores unrolls and has not been told of how many "
                "environments: call set_num_environments, as a Composition does"
            )
        if self._memory is None or self._latest is None:
            return
        self._memory.add(self._latest)
        self._latest = None
        if self._memory.is_full:
            self.auxiliary_phase(self._memory.rows())
            self._memory.clear()

    def auxiliary_phase(self, rows: AuxiliaryRows) -> None:
        """E_aux passes over ``rows`` [rows, ...] in shuffled mini-batches."""
        num_rows = len(rows.valid)
        size = self._auxiliary_mini_batch_size
        self._target_normalizer.update(rows.value_target, rows.valid)
        share_statistics([self._target_normalizer])
        with torch.no_grad():
            old = nest.cat(
                [
                    self._policy(nest.narrow(rows.observation, begin, begin + size))[0]
                    for begin in range(0, num_rows, size)
                ]
            )
        for _ in range(self._auxiliary_epochs):
            order = torch.randperm(num_rows, device=rows.valid.device)
            for index in order.tensor_split(max(1, num_rows // size)):
                batch, old_distribution = nest.map_structure(
                    lambda t, index=index: t[index], (rows, old)
                )
                with trained_rows(batch.valid):
                    loss_info = self.auxiliary_loss(batch, old_distribution)
                update_with_gradient(self, loss_info, wants_norms=False)
        parts = loss_info.extra._asdict().items()
        with summary.scope(self.name):
            write_means(
                {f"auxiliary/{n}": (part, loss_info.num_valid) for n, part in parts}
            )

    def auxiliary_loss(self, batch: AuxiliaryRows, old_distribution: Nest) -> LossInfo:
        """L^joint + L^value: ½ (V_π − R̃)² + β_clone KL(π_old ‖ π) + ½ (V − R)².

        R̃ is R at the mean 0 and the deviation 1 of all targets so far.

        Args:
            batch: [rows, ...].
            old_distribution: [rows, ...], π_old(·|s) at the beginning of the phase.

        Returns:
            ``loss`` [], the mean over the valid rows, and its parts.
        """
        distribution, features, _ = self._policy.with_features(batch.observation)
        target = batch.value_target
        prediction = self._auxiliary_head(features).view_as(target)
        scaled_target = self._target_normalizer.normalize(target)
        value, _ = self._value(batch.observation)
        kl = distributions.kl_divergence(old_distribution, distribution)
        parts = [
            losses.masked_mean(part, batch.valid)
            for part in (
                0.5 * self._sum_dims(losses.squared(prediction, scaled_target)),
                kl,
                0.5 * self._sum_dims(losses.squared(value, target)),
            )
        ]
        loss = parts[0] + self._clone_weight * parts[1] + parts[2]
        extra = AuxiliaryLossInfo(*(part.detach() for part in parts))
        num_valid = batch.valid.count_nonzero()
        return LossInfo(loss=loss, extra=extra, num_valid=num_valid)


class UnrollMemory(nn.Module):
    """The steps of the unrolls since the last auxiliary phase, which checkpoints hold.

    Args:
        observation_spec: of one observation.
        reward_spec: of the value targets.
        num_unrolls: when it is full.
        num_rows: steps of one unroll, of all environments.
    """

    differs_by_rank = True  # the steps of its own environments

    _num_unrolls: Tensor  # [] int64, stored ones

    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec,
        num_unrolls: int,
        num_rows: int,
    ) -> None:
        super().__init__()
        specs: Any = (observation_spec, reward_spec, TensorSpec((), torch.bool))
        self._specs = AuxiliaryRows(*specs)
        self._num_rows = num_rows
        self._capacity = num_unrolls
        self._names = [f"_leaf_{i}" for i in range(len(nest.flatten(self._specs)))]
        for name, spec in zip(self._names, nest.flatten(self._specs), strict=True):
            shape = (num_unrolls * num_rows, *spec.shape)
            self.register_buffer(name, torch.zeros(shape, dtype=spec.dtype))
        self.register_buffer("_num_unrolls", torch.zeros((), dtype=torch.int64))

    @property
    def is_full(self) -> bool:
        return int(self._num_unrolls) == self._capacity

    def add(self, rows: AuxiliaryRows) -> None:
        """Appends the steps of an unroll, [rows, ...]."""
        begin = int(self._num_unrolls) * self._num_rows
        for own, leaf in zip(self._leaves(), nest.flatten(rows), strict=True):
            own[begin : begin + self._num_rows].copy_(leaf)
        self._num_unrolls += 1

    def rows(self) -> AuxiliaryRows:
        """All that is stored, [rows, ...], as long as nothing is added."""
        end = int(self._num_unrolls) * self._num_rows
        return nest.pack_sequence_as(self._specs, [x[:end] for x in self._leaves()])

    def clear(self) -> None:
        """Forgets the unrolls."""
        self._num_unrolls.zero_()

    def _leaves(self) -> list[Tensor]:
        return [getattr(self, name) for name in self._names]
