"""Log-probabilities of actions that were taken, and entropies, in numpy."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from alf_lite import fast, nest
from alf_lite.distributions.continuous import DiagonalNormal
from alf_lite.distributions.discrete import Categorical
from alf_lite.fast import NumpyFunction, Pullback
from alf_lite.networks.continuous_projections import NormalProjection
from alf_lite.networks.projections import CategoricalProjection

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_in_torch = fast.torch_body(Categorical.log_prob_and_entropy)  # of all distributions


def choice(distribution: Categorical, value: Tensor) -> tuple[Tensor, Tensor]:
    """See :meth:`Categorical.log_prob_and_entropy`."""
    logits, index = distribution.logits, distribution._index(value)
    if index.shape != logits.shape[:-1] or not fast.may_use_numpy(logits):
        return NotImplemented
    return _evaluated(distribution, value, NumpyChoice(index))


def normal(distribution: DiagonalNormal, value: Tensor) -> tuple[Tensor, Tensor]:
    """See :meth:`DiagonalNormal.log_prob_and_entropy`."""
    loc = distribution.loc
    is_constant = value.shape == loc.shape and not value.requires_grad
    if not is_constant or not fast.may_use_numpy(loc):
        return NotImplemented
    function = NumpyNormal(value, distribution.num_event_dims)
    return _evaluated(distribution, value, function)


def _evaluated(
    distribution: Any, value: Tensor, function: NumpyFunction
) -> tuple[Tensor, Tensor]:
    def in_torch(*parameters: Tensor) -> Any:
        return _in_torch(nest.pack_sequence_as(distribution, parameters), value)

    log_prob, entropy = fast.by_numpy(function, in_torch, *nest.flatten(distribution))
    return log_prob, entropy


class Likelihood(NamedTuple):
    """In numpy, log-probability [B] and entropy [B] of actions that were taken."""

    function: NumpyFunction  # of the outputs of the head's layer [B, ·] and the inputs
    inputs: tuple[Tensor, ...] = ()


def likelihood_of(
    head: Any, action: Any, allowed: Tensor | None = None
) -> Likelihood | None:
    """What the outputs of the layer of a head lead to, of actions [B, ...].

    Of N categories, those are ruled out that are not ``allowed`` [·, N].
    """
    if fast.is_exactly(head, CategoricalProjection):
        index = action.long()
        if allowed is not None:
            allowed = allowed[: len(index)]
        return Likelihood(
            NumpyChoice(index - head._minimum if head._minimum else index, allowed)
        )
    if (
        allowed is not None
        or not fast.is_exactly(head, NormalProjection)
        or action.dtype != torch.float32
    ):
        return None
    if head._bounds is not None or head._log_std_linear is not None:
        return None
    scale = head._log_std.clamp(*head._log_std_bounds).exp()
    action = action.reshape(len(action), -1)
    return Likelihood(NumpyNormal(action, 1), (scale.expand_as(action),))


class NumpyChoice:
    """In numpy, the log-probability of an index [...] and the entropy."""

    # Of less probable categories exp() is 0, so that they have no part in the entropy.
    _LOWEST = np.float32(-1e4)
    _RULED_OUT = np.float32(-1e30)  # see mask_logits

    def __init__(self, index: Tensor, allowed: Tensor | None = None) -> None:
        self._index = index.numpy().reshape(-1)
        self._is_ruled_out = None if allowed is None else ~allowed.numpy().T  # [n, N]

    def __call__(
        self, logits: np.ndarray
    ) -> tuple[tuple[np.ndarray, np.ndarray], Pullback]:
        shape = logits.shape
        # [n, N]: few categories make short rows, which take numpy long.
        columns = np.array(logits.reshape(-1, shape[-1]).T, order="C")  # a copy
        if self._is_ruled_out is not None:
            columns[self._is_ruled_out] = self._RULED_OUT
        places = self._index, np.arange(columns.shape[1])
        columns -= np.maximum.reduce(columns, axis=0)
        probs = np.exp(columns)
        total = np.add.reduce(probs, axis=0)
        columns -= np.log(total)  # are now log-probabilities
        probs /= total
        log_prob = columns[places]
        np.maximum(columns, self._LOWEST, out=columns)
        entropy = np.add.reduce(probs * columns, axis=0)
        np.negative(entropy, out=entropy)

        def pullback(to_log_prob: Any, to_entropy: Any) -> tuple[np.ndarray]:
            # ∂H/∂l = −p (log p + H), ∂log p_a/∂l = 1_a − p
            slopes = np.zeros_like(probs)
            if to_entropy is not None:
                np.add(columns, entropy, out=slopes)
                slopes *= to_entropy.reshape(-1)
            if to_log_prob is not None:
                to_log_prob = to_log_prob.reshape(-1)
                slopes += to_log_prob
            slopes *= probs
            np.negative(slopes, out=slopes)
            if to_log_prob is not None:
                slopes[places] += to_log_prob
            if self._is_ruled_out is not None:
                slopes[self._is_ruled_out] = 0
            return (slopes.T.reshape(shape),)

        return (log_prob.reshape(shape[:-1]), entropy.reshape(shape[:-1])), pullback


class NumpyNormal:
    """In numpy, the log-probability of a value and the entropy."""

    def __init__(self, value: Tensor, num_event_dims: int) -> None:
        self._value = value.numpy()
        self._batch_shape = value.shape[: value.ndim - num_event_dims]

    def __call__(
        self, loc: np.ndarray, scale: np.ndarray
    ) -> tuple[tuple[np.ndarray, np.ndarray], Pullback]:
        inverse = np.reciprocal(scale)
        distance = (self._value - loc) * inverse
        log_scale = self._sum(np.log(scale))
        square = self._sum(distance * distance)
        size = loc.size // max(square.size, 1)
        log_prob = square * np.float32(-0.5) - log_scale
        log_prob -= np.float32(size * _HALF_LOG_2PI)
        entropy = log_scale + np.float32(size * (0.5 + _HALF_LOG_2PI))

        def pullback(to_log_prob: Any, to_entropy: Any) -> tuple[Any, Any]:
            to_loc, to_scale = None, np.float32(0)
            if to_entropy is not None:
                to_scale = self._expanded(to_entropy, loc) * inverse
            if to_log_prob is not None:
                slope = self._expanded(to_log_prob, loc) * inverse
                to_loc = slope * distance
                to_scale = to_scale + slope * (distance * distance - np.float32(1))
            return to_loc, to_scale

        return (log_prob, entropy), pullback

    def _sum(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(*self._batch_shape, -1).sum(-1)

    def _expanded(self, x: np.ndarray, like: np.ndarray) -> np.ndarray:
        return x.reshape(x.shape + (1,) * (like.ndim - x.ndim))
