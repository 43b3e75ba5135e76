"""What several critics together say."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from alf_lite.utils import losses
from alf_lite.utils.tensor_utils import expand_dims_as


def smallest_critic(values: Tensor, weighted: Tensor) -> Tensor:
    """The values of the most pessimistic of n critics.

    Of a reward of several dimensions, all values are those of one critic: of the one
    whose weighted sum is smallest. The smallest values one by one would belong to none.

    Args:
        values: [B, n, ...] or, with D values each, [B, n, ..., D].
        weighted: [B, n, ...], what is maximised in the end; ``values`` themselves if
            there is one value.

    Returns:
        [B, ...] or [B, ..., D].
    """
    if weighted is values:
        return values.amin(1)
    critic = expand_dims_as(weighted.argmin(1, keepdim=True), values[:, :1])
    return values.gather(1, critic.expand_as(values[:, :1])).squeeze(1)


def td_loss(
    q: Tensor,
    reward: Tensor,
    discount: Tensor,
    next_value: Tensor,
    scalar_reward: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Callable[[], Tensor]]:
    """Σ_k (G_t + Γ_t V(s_{t+m}) − Q_k(s_t, a_t))², and what computes mean_k |δ_k|.

    Both [T, B]; few need the latter.

    Of a reward of several dimensions, the squares are summed over them, and δ is
    weighted.

    Args:
        q: [T, B, n] or [T, B, n, D], with gradient.
        reward: [T, B] or [T, B, D], G_t.
        discount: [T, B] Γ_t.
        next_value: [T, B] or [T, B, D], V(s_{t+m}).
        scalar_reward: weights [..., D] to [...].
    """
    discount = expand_dims_as(discount, reward)
    target = (reward + discount * next_value).unsqueeze(2).expand_as(q)
    loss = losses.squared(q, target).flatten(2).sum(2)
    return loss, lambda: scalar_reward(target - q.detach()).abs().mean(2)
