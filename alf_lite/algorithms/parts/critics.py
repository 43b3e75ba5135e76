"""Critics: an ensemble of action values with its target networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from alf_lite.algorithms.parts.target_updater import TargetUpdater, target_copy
from alf_lite.distributions.action_masks import ActionMask
from alf_lite.networks.network import Network, as_critic_network
from alf_lite.utils import losses
from alf_lite.utils.tensor_utils import expand_dims_as

Nest = Any


class Critics(nn.Module):
    """n critics Q_k, trained, and Q⁻_k, which follow them.

    ``online`` and ``target`` are networks like :class:`CriticNetwork`: what they
    ``encode`` an observation to serves to ``evaluate`` several actions.

    Args:
        network: from :func:`make_critic_network`.
        weigh: values [..., D] to [...], what is maximised; of one value, itself.
        tau: see :class:`TargetUpdater`.
        period: likewise.
    """

    def __init__(
        self,
        network: Any,
        weigh: Callable[[Tensor], Tensor],
        *,
        tau: float,
        period: int,
    ) -> None:
        super().__init__()
        self.online = network
        self.target = target_copy(network)
        self.target_updater = TargetUpdater(
            [network], [self.target], tau=tau, period=period
        )
        self._weigh = weigh
        self._trained: list[nn.Parameter] | None = None

    def evaluate_frozen(self, features: Tensor, vector: Tensor) -> Tensor:
        """The values of ``online``, with gradient to the vector only, [B, n, ...].

        A policy is improved through the critics in this way, within the same backward
        pass that trains them on something else.

        Args:
            features: [B, F], from ``online.encode``.
            vector: [B, vector_size], of an action.
        """
        if self._trained is None:
            self._trained = list(self.online.parameters())
        trained = [p for p in self._trained if p.requires_grad]
        for parameter in trained:
            parameter.requires_grad_(False)
        try:
            return self.online.evaluate(features.detach(), vector)
        finally:
            for parameter in trained:
                parameter.requires_grad_(True)

    def smallest(self, values: Tensor) -> Tensor:
        """The values of the most pessimistic critic: [B, n, ...] → [B, ...].

        Of a reward of several dimensions, all values are those of one critic: of the
        one whose weighted sum is smallest. The smallest values one by one would belong
        to none.
        """
        weighted = self._weigh(values)
        if weighted is values:
            return values.amin(1)
        critic = expand_dims_as(weighted.argmin(1, keepdim=True), values[:, :1])
        return values.gather(1, critic.expand_as(values[:, :1])).squeeze(1)

    def td_loss(
        self,
        q: Tensor,
        reward: Tensor,
        discount: Tensor,
        next_value: Tensor,
        *,
        halved: bool = False,
    ) -> tuple[Tensor, Callable[[], Tensor]]:
        """Σ_k (G_t + Γ_t V(s_{t+m}) − Q_k(s_t, a_t))², and what computes mean_k |δ_k|.

        Both [T, B]; few need the latter. Of values of several dimensions, the squares
        are summed over them, and δ is weighted.

        Args:
            q: [T, B, n] or [T, B, n, D], with gradient.
            reward: [T, B] or [T, B, D], G_t.
            discount: [T, B] Γ_t.
            next_value: [T, B] or [T, B, D], V(s_{t+m}).
            halved: ½ of each square.
        """
        discount = expand_dims_as(discount, reward)
        target = (reward + discount * next_value).unsqueeze(2).expand_as(q)
        squares = losses.squared(q, target)
        loss = (0.5 * squares if halved else squares).flatten(2).sum(2)
        return loss, lambda: self._weigh(target - q.detach()).abs().mean(2)

    def update_targets(self) -> None:
        """Counts one update and moves the targets if it is due."""
        self.target_updater.forward()


def make_critic_network(
    network_ctor: Callable[..., Any],
    mask: ActionMask,
    *arguments: Any,
    what: str = "critic_network_ctor",
) -> Any:
    """Critics for observations with a mask, which they do not see.

    Args:
        network_ctor: called as ``ctor(observation_spec, vector_size, num_critics,
            output_shape)``; see :class:`CriticNetwork`.
        mask: of the observations.
        arguments: of the constructor, after the spec.
        what: the parameter that named the constructor, for messages.
    """
    network = as_critic_network(network_ctor(mask.remaining_spec, *arguments), what)
    return _WithoutMask(network, mask) if mask.exists else network


class _WithoutMask(Network):
    """Takes observations with a mask and has the state of the network inside."""

    def __init__(self, network: Any, mask: ActionMask) -> None:
        super().__init__(mask.observation_spec, network.state_spec)
        self._network = network
        self._mask = mask

    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        observation, action = inputs
        features, state = self.encode(observation, state)
        return self.evaluate(features, action), state

    def encode(self, observation: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        return self._network.encode(self._mask.remaining(observation), state)

    def evaluate(self, features: Tensor, action: Tensor | None) -> Tensor:
        return self._network.evaluate(features, action)
