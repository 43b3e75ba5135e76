"""A policy that another one keeps near to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from alf_lite import nest
from alf_lite.algorithms.parts.policy import Policy
from alf_lite.checkpoints import checkpointer as checkpoints
from alf_lite.checkpoints.data import load_module_state
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.checks import check_left_out, check_positive


class Prior(Policy):
    """A policy for continuous actions, without memory, that stays as it is.

    Args:
        network_ctor: see :class:`Policy`.
        action_spec: likewise.
        mask: likewise.
        checkpoint: ``"prefix@path"`` of it, such as ``"_policy@runs/x"`` for the policy
            of another SacAlgorithm; loaded before training starts, after
            ``checkpoint``. None: parameters are random, or those that ``checkpoint``
            has for them.
        target_kld_per_dim: KL(π ‖ prior) that is wanted, for each element; None: 3.

    Raises:
        ConfigError: if the network builds something else.
        ValueError: if ``target_kld_per_dim`` is not positive.
    """

    def __init__(
        self,
        network_ctor: Callable[..., Any],
        action_spec: NestedTensorSpec,
        mask: ActionMask,
        checkpoint: str | None = None,
        target_kld_per_dim: float | None = None,
    ) -> None:
        kld = 3.0 if target_kld_per_dim is None else target_kld_per_dim
        check_positive(target_kld_per_dim=kld)
        super().__init__(network_ctor, action_spec, mask, "prior_actor_ctor")
        self._checkpoint = checkpoint
        specs = [spec for _, spec, _ in self.parts()]
        if any(spec.is_discrete for spec in specs):
            raise ConfigError(
                f"prior_actor_ctor needs continuous actions, got {action_spec}"
            )
        if not nest.is_empty(self.state_spec):
            raise ConfigError(
                "prior_actor_ctor must build a network without memory, got one with "
                f"the state {self.state_spec}"
            )
        self.target_entropy = -kld * sum(spec.numel for spec in specs)  # of −KL
        self.requires_grad_(False)

    def load(self, owner: str) -> None:
        """Takes the parameters of the checkpoint, if there is one.

        Args:
            owner: of the prior, in messages.

        Raises:
            CheckpointError: if there is no such policy, or it does not fit.
        """
        if self._checkpoint is None:
            return
        try:
            part = checkpoints.load_prefix(self._checkpoint)
        except CheckpointError as error:
            raise CheckpointError(f"{owner}: prior_checkpoint: {error}") from error
        load_module_state(self, part, f"{owner}: the prior from {self._checkpoint}")


def make_prior(
    network_ctor: Callable[..., Any] | None,
    action_spec: NestedTensorSpec,
    mask: ActionMask,
    checkpoint: str | None,
    target_kld_per_dim: float | None,
    target_entropy: Any,
) -> Prior | None:
    """The :class:`Prior`, if there is one; the entropy has a target if there is none.

    Raises:
        ConfigError: for settings of the one where the other is.
    """
    if network_ctor is None:
        check_left_out(
            "there is no prior_actor_ctor",
            prior_checkpoint=checkpoint,
            target_kld_per_dim=target_kld_per_dim,
        )
        return None
    check_left_out(
        "prior_actor_ctor has target_kld_per_dim in its place",
        target_entropy=target_entropy,
    )
    return Prior(network_ctor, action_spec, mask, checkpoint, target_kld_per_dim)
