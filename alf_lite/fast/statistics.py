"""Statistics and sums over batches, and what is taken out of them, in numpy."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite.algorithms.parts import transitions
from alf_lite.data_structures import StepType
from alf_lite.fast import Pullback, by_numpy, may_use_numpy, torch_body
from alf_lite.replay_buffers.packed_windows import PackedWindows
from alf_lite.replay_buffers.row_layout import PackedSteps
from alf_lite.utils import losses
from alf_lite.utils.compiled_loops import compiled

_LAST = int(StepType.LAST)

_ACTION, _STEP_TYPE = "time_step.prev_action", "time_step.step_type"
_SUMS = ("time_step.reward", "time_step.discount")


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """See :func:`~alf_lite.utils.losses.masked_mean`."""
    if x.shape != valid.shape or not may_use_numpy(x):
        return NotImplemented
    mean = functools.partial(numpy_mean, valid=valid.numpy())
    return by_numpy(mean, lambda x: _masked_mean(x, valid), x)[0]


_masked_mean = torch_body(losses._masked_mean)


def numpy_mean(x: np.ndarray, valid: np.ndarray) -> tuple[tuple[np.ndarray], Pullback]:
    """The mean of the entries where ``valid``, of the same shape, says so."""
    count = int(np.count_nonzero(valid))
    if count < x.size:
        x = np.where(valid, x, np.float32(0))
    divisor = np.float32(max(count, 1))
    mean = np.asarray(np.add.reduce(x, axis=None) / divisor)

    def pullback(gradient: Any) -> tuple[np.ndarray]:
        return (np.multiply(valid, gradient / divisor, dtype=np.float32),)

    return (mean,), pullback


def normalized(x: Tensor, valid: Tensor | None, epsilon: float) -> Tensor:
    """See :func:`~alf_lite.utils.losses.normalize`, of what has no gradient."""
    is_constant = not (x.requires_grad and torch.is_grad_enabled())
    has_mask = valid is not None and x.shape == valid.shape
    if not (has_mask and is_constant and may_use_numpy(x)):
        return NotImplemented
    assert valid is not None
    array = _normalized(x.detach().numpy(), valid.numpy(), epsilon)
    return torch.from_numpy(array)


def _normalized(x: np.ndarray, valid: np.ndarray, epsilon: float) -> np.ndarray:
    count = int(np.count_nonzero(valid))
    with np.errstate(all="ignore"):  # torch does not warn either
        if count < x.size:
            x = np.where(valid, x, np.float32(0))
        mean = float(np.add.reduce(x, axis=None)) / max(count, 1)
        deviation = x - np.float32(mean)
        if count < x.size:
            deviation = np.where(valid, deviation, np.float32(0))
        flat = deviation.reshape(-1)
        std = math.sqrt(float(flat.dot(flat)) / max(count, 1))
        if not std > losses._ROUNDING * abs(mean):
            return np.zeros_like(deviation)
        return deviation * np.float32(1 / (std + epsilon))


def lambda_sums(
    rewards: Tensor,
    values: Tensor,
    step_types: Tensor,
    discounts: Tensor,
    td_lambda: float,
    time_major: bool,
    is_return: bool,
) -> Tensor:
    """See :func:`~alf_lite.utils.value_ops.lambda_return`, and the one for GAE."""
    inputs = rewards, values, step_types, discounts
    are_equal = rewards.dtype == values.dtype == discounts.dtype
    if not (are_equal and all(x.is_cpu for x in inputs) and may_use_numpy(values)):
        return NotImplemented
    arrays = [x.detach().numpy() for x in inputs]
    if not time_major:
        arrays = [x.swapaxes(0, 1) for x in arrays]
    r, v, step, discount = arrays
    td_lambda = float(td_lambda)
    discount, valid = discount[1:], step[:-1] != _LAST
    if r.ndim > step.ndim:
        discount, valid = discount[..., None], valid[..., None]
    with np.errstate(all="ignore"):  # torch does not warn either
        ahead = (1 - td_lambda) * v[1:] if is_return else v[1:]
        sums = np.where(valid, r[1:] + discount * ahead, v[:-1])
        weights = np.where(valid, td_lambda * discount, 0.0)
        sums = (sums if is_return else sums - v[:-1]).copy()
        if is_return:
            sums[-1] += weights[-1] * v[-1]
        distance = 1
        while distance < len(sums):  # see reverse_linear_scan
            reaching = len(sums) - distance
            weights = weights[:reaching]
            sums[:reaching] += weights * sums[distance:]
            weights = weights[:-distance] * weights[distance:]
            distance *= 2
    result = torch.from_numpy(sums)
    return result if time_major else result.transpose(0, 1)


def pair(algorithm: Any, windows: PackedWindows) -> PackedSteps:
    """See :meth:`~alf_lite.algorithms.rl_contract.RLContract.step_pairing`."""
    n, gamma = algorithm._n_step, algorithm._gamma
    if n == 1:
        pairs = windows.steps()
        pairs.array(_SUMS[1])[:, 1] *= gamma
        return pairs
    followers = _sums_of_loop(windows, n, gamma) or _sums_of(windows, n, gamma)
    *sums, next_rows, end_rows = followers
    pairs = windows.pairs(end_rows)
    pairs.copy_from(np.s_[:, 1], _ACTION, windows.stored, next_rows)
    for path, values in zip(_SUMS, sums, strict=True):
        pairs.array(path)[:, 1] = values
    return pairs


def _sums_of(windows: PackedWindows, n: int, gamma: float) -> tuple[np.ndarray, ...]:
    """G, Γ, the rows of s_{t+1} and those of s_{t+m}, each [N, ...]."""
    reward, discount, step_type = windows.part(np.s_[:], (*_SUMS, _STEP_TYPE))
    *sums, num_steps = transitions._sums(reward, discount, step_type, n, gamma)
    ends = np.take_along_axis(windows.rows, num_steps.numpy(), 1)
    return *(x.numpy()[:, 0] for x in sums), windows.rows[:, 1], ends[:, 0]


def _sums_of_loop(
    windows: PackedWindows, n: int, gamma: float
) -> tuple[np.ndarray, ...] | None:
    """The same; None where there is no compiled loop, or none for such rewards."""
    loop = compiled(_n_step_loop, _N_STEP_LOOP)
    fields = [windows.stored.array(path) for path in (*_SUMS, _STEP_TYPE)]
    if loop is None or fields[0].ndim > 1 or [x.dtype for x in fields] != _SUMMED:
        return None
    first_rows = windows.first_rows
    sums = np.empty((2, len(first_rows)), np.float32)
    rows = np.empty((2, len(first_rows)), np.int64)
    loop(*fields, first_rows, windows.max_length, n, np.float32(gamma), sums, rows)
    return *sums, *rows


_SUMMED = [np.float32, np.float32, np.int32]
_N_STEP_LOOP = "void(f4[:], f4[:], i4[:], i8[::1], i8, i8, f4, f4[:, ::1], i8[:, ::1])"


def _n_step_loop(
    rewards: np.ndarray,
    discounts: np.ndarray,
    step_types: np.ndarray,
    first_rows: np.ndarray,
    max_length: int,
    n: int,
    gamma: np.float32,
    sums: np.ndarray,
    rows: np.ndarray,
) -> None:
    """As :func:`n_step_sums`, of windows that begin in rows [N] of rings.

    Args:
        rewards: of all rows that are stored, as the next two.
        discounts: likewise.
        step_types: likewise.
        first_rows: [N].
        max_length: the rows of a ring.
        n: of the n-step return.
        gamma: γ.
        sums: [2, N], filled with G and Γ.
        rows: [2, N], filled with the rows of s_{t+1} and s_{t+m}.
    """
    one, zero = np.float32(1), np.float32(0)
    for i in range(len(first_rows)):
        first = first_rows[i]
        ring = first // max_length * max_length
        total, product, num_steps, row = zero, one, 0, 0
        for k in range(n, 0, -1):
            row = ring + (first - ring + k) % max_length
            goes_on = step_types[row] != _LAST
            discount = discounts[row] * gamma
            factor = discount if goes_on else zero
            total = total * factor + rewards[row]
            product = product * factor + (discount - factor)
            num_steps = 1 + num_steps if goes_on else 1
        if step_types[first] == _LAST:
            num_steps = 0
        sums[0, i], sums[1, i] = total, product
        rows[0, i] = row  # of k = 1
        rows[1, i] = ring + (first - ring + num_steps) % max_length


def n_step_sums(
    reward: Tensor, discount: Tensor, step_type: Tensor, n: int, gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The returns of n steps, by recursion from the n-th step ahead to the first.

        G ← r_k + f_k G,   Γ ← (γ_k - f_k) + f_k Γ,   m ← 1 + g_k m

    with g_k = 0 where step k is LAST, else 1, and f_k = γ_k g_k. All of them are one
    array, with time first and windows last: each step is one pass over the batch.
    """
    is_constant = not (reward.requires_grad or discount.requires_grad)
    if not (is_constant and reward.is_cpu and reward.dtype == torch.float32):
        return NotImplemented
    length, num_rows = step_type.shape[1], step_type.shape[1] - n
    rewards = reward.numpy().T  # [T, B] or [D, T, B]
    rewards = rewards[:, None] if reward.ndim == 2 else rewards.swapaxes(0, 1)
    shape = length, rewards.shape[1] + 2, step_type.shape[0]
    terms, factors = np.empty(shape, np.float32), np.empty(shape, np.float32)
    goes_on = np.not_equal(step_type.numpy().T, _LAST, out=factors[:, -1])
    discounts = np.multiply(discount.numpy().T, gamma, out=terms[:, -2])
    factors[:, :-1] = (discounts * goes_on)[:, None]
    discounts -= factors[:, -2]
    terms[:, :-2] = rewards
    terms[:, -1] = 1.0
    sums = np.zeros((num_rows, *shape[1:]), np.float32)  # [T-n, D + 2, B]
    sums[:, -2] = 1.0
    for k in range(n, 0, -1):
        sums *= factors[k : k + num_rows]
        sums += terms[k : k + num_rows]
    num_steps = sums[:, -1] * goes_on[:num_rows]
    returns = sums[:, 0].T if reward.ndim == 2 else sums[:, :-2].transpose(2, 0, 1)
    results = returns, sums[:, -2].T, num_steps.T.astype(np.int64)
    return tuple(map(torch.from_numpy, results))  # type: ignore[return-value]
