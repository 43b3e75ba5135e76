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


class Prior(Policy):
    """A policy for continuous actions, without memory, that stays as it is.

    Args:
        network_ctor: see :class:`Policy`.
        action_spec: likewise.
        mask: likewise.
        checkpoint: ``"prefix@path"`` of a policy, for :meth:`load`; None: none.

    Raises:
        ConfigError: if the network builds something else.
    """

    def __init__(
        self,
        network_ctor: Callable[..., Any],
        action_spec: NestedTensorSpec,
        mask: ActionMask,
        checkpoint: str | None = None,
    ) -> None:
        super().__init__(network_ctor, action_spec, mask, "prior_actor_ctor")
        self._checkpoint = checkpoint
        if any(spec.is_discrete for _, spec, _ in self.parts()):
            raise ConfigError(
                f"prior_actor_ctor needs continuous actions, got {action_spec}"
            )
        if not nest.is_empty(self.state_spec):
            raise ConfigError(
                "prior_actor_ctor must build a network without memory, got one with "
                f"the state {self.state_spec}"
            )
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
