"""What several critics together say."""

from __future__ import annotations

from torch import Tensor

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
