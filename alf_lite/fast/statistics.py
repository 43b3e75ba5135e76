"""Statistics and sums over batches, and what is taken out of them, in numpy."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import StepType
from alf_lite.fast import Pullback, by_numpy, may_use_numpy, torch_body
from alf_lite.replay_buffers.packed_windows import PackedWindows
from alf_lite.replay_buffers.row_layout import PackedSteps, RowLayout
from alf_lite.utils import losses
from alf_lite.utils.compiled_loops import compiled
from alf_lite.utils.recurrences import reverse_linear_scan

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
        increments = sums if is_return else sums - v[:-1]
        final = v[-1] if is_return else None
        sums = reverse_linear_scan(increments, weights, final)
    result = torch.from_numpy(sums)
    return result if time_major else result.transpose(0, 1)


def pair(algorithm: Any, windows: PackedWindows) -> PackedSteps:
    """See :meth:`~alf_lite.algorithms.rl_contract.RLContract.step_pairing`."""
    n, gamma = algorithm._n_step, algorithm._gamma
    if n == 1:
        pairs = windows.steps()
        pairs.array(_SUMS[1])[:, 1] *= gamma
        windows.step_types = pairs.array(_STEP_TYPE).T
        return pairs
    made = _pairs_of_loop(windows, n, gamma)
    if made is not None:
        return made
    rows = np.ascontiguousarray(windows.rows.T)  # [T, B]
    reward, discount, step_types = (
        windows.storage.steps.array(path)[rows] for path in (*_SUMS, _STEP_TYPE)
    )
    windows.step_types = step_types
    rewards = reward[:, None] if reward.ndim == 2 else reward.swapaxes(1, 2)
    sums, products, num_steps = _n_step_sums(rewards, discount, step_types, n, gamma)
    pairs = windows.pairs(np.take_along_axis(rows, num_steps, 0)[0])
    pairs.copy_from(np.s_[:, 1], _ACTION, windows.storage.steps, rows[1])
    pairs.array(_SUMS[0])[:, 1] = sums[0, 0] if reward.ndim == 2 else sums[0].T
    pairs.array(_SUMS[1])[:, 1] = products[0]
    return pairs


def _pairs_of_loop(windows: PackedWindows, n: int, gamma: float) -> PackedSteps | None:
    """The same; None where there is no compiled loop, or none for such rewards."""
    loop = compiled(_pair_loop, _PAIR_LOOP)
    storage, rows = windows.storage, windows.first_rows
    places = None if loop is None else _places(storage.layout)
    if loop is None or places is None:
        return None
    pairs = np.empty((len(rows), 2 * storage.layout.row_bytes), np.uint8)
    step_types = windows.step_types = np.empty((n + 1, len(rows)), np.int32)
    ring = storage.bytes, rows, storage.max_length
    loop(*ring, n, np.float32(gamma), *places, pairs, step_types)
    return storage.layout.packed(pairs)


@functools.lru_cache(maxsize=8)
def _places(layout: RowLayout) -> tuple[np.ndarray, np.ndarray] | None:
    """Where the loop finds numbers and actions in a row; None if it knows no such."""
    numbers = [layout.leaves[layout.select(path)] for path in (*_SUMS, _STEP_TYPE)]
    if [(x.shape, x.dtype) for x in numbers] != _SUMMED:
        return None
    actions = [layout.leaves[i] for i in nest.flatten(layout.select(_ACTION))]
    spans = [(x.offset, x.offset + x.num_bytes) for x in actions] or [(0, 0)]
    return np.array([x.offset // 4 for x in numbers]), np.array(spans, np.int64)


_SUMMED = [((), dtype) for dtype in (torch.float32, torch.float32, torch.int32)]
_PAIR_LOOP = (
    "void(u1[:, ::1], i8[::1], i8, i8, f4, i8[::1], i8[:, ::1], u1[:, ::1], i4[:, ::1])"
)


def _pair_loop(
    stored: np.ndarray,
    first_rows: np.ndarray,
    max_length: int,
    n: int,
    gamma: np.float32,
    numbers: np.ndarray,
    actions: np.ndarray,
    pairs: np.ndarray,
    step_types: np.ndarray,
) -> None:
    """Puts together a step and what it bootstraps from; the sums as ``_n_step_sums``.

    Args:
        stored: [num_rows, row_bytes] uint8, of rings.
        first_rows: [B], where windows begin.
        max_length: the rows of a ring.
        n: of the n-step return.
        gamma: γ.
        numbers: where reward, discount and step type are in a row, in four bytes.
        actions: [K, 2], begin and end of what is taken from s_{t+1}, in bytes.
        pairs: [B, 2 * row_bytes] uint8, filled with s_t and s_{t+m}, which has the
            reward G and the discount Γ.
        step_types: [n + 1, B], filled with those of the windows.
    """
    one, zero = np.float32(1), np.float32(0)
    words, floats = stored.view(np.int32), stored.view(np.float32)
    pair_words, pair_floats = pairs.view(np.int32), pairs.view(np.float32)
    reward, discount, step_type = numbers
    width = words.shape[1]
    for i in range(len(first_rows)):  # without a branch: reading waits for nothing
        first = first_rows[i]
        ring_end = (first // max_length + 1) * max_length
        for k in range(n + 1):
            row = first + k
            row -= max_length if row >= ring_end else 0
            step_types[k, i] = words[row, step_type]
        for k in range(width):
            pair_words[i, k] = words[first, k]
    for i in range(len(first_rows)):
        first = first_rows[i]
        ring_end = (first // max_length + 1) * max_length
        total, product, num_steps, row = zero, one, 0, 0
        for k in range(n, 0, -1):
            row = first + k
            row -= max_length if row >= ring_end else 0
            goes_on = step_types[k, i] != _LAST
            gamma_k = floats[row, discount] * gamma
            factor = gamma_k if goes_on else zero
            total = total * factor + floats[row, reward]
            product = product * factor + (gamma_k - factor)
            num_steps = 1 + num_steps if goes_on else 1
        end = first + (num_steps if step_types[0, i] != _LAST else 0)
        end -= max_length if end >= ring_end else 0
        for k in range(width):
            pair_words[i, width + k] = words[end, k]
        for span in actions:
            for k in range(span[0], span[1]):
                pairs[i, 4 * width + k] = stored[row, k]
        pair_floats[i, width + reward] = total
        pair_floats[i, width + discount] = product


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
    rewards = reward.numpy().T  # [T, B] or [D, T, B]
    rewards = rewards[:, None] if reward.ndim == 2 else rewards.swapaxes(0, 1)
    sums, products, num_steps = _n_step_sums(
        rewards, discount.numpy().T, step_type.numpy().T, n, gamma
    )
    returns = sums[:, 0].T if reward.ndim == 2 else sums.transpose(2, 0, 1)
    results = returns, products.T, num_steps.T
    return tuple(map(torch.from_numpy, results))  # type: ignore[return-value]


def _n_step_sums(
    rewards: np.ndarray,
    discounts: np.ndarray,
    step_types: np.ndarray,
    n: int,
    gamma: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """G [T-n, D, B], Γ and m [T-n, B], of [T, D, B] and [T, B]."""
    length, num_windows = step_types.shape
    num_rows = length - n
    shape = length, rewards.shape[1] + 2, num_windows
    terms, factors = np.empty(shape, rewards.dtype), np.empty(shape, rewards.dtype)
    goes_on = np.not_equal(step_types, _LAST, out=factors[:, -1])
    discounts = np.multiply(discounts, gamma, out=terms[:, -2])
    factors[:, :-1] = (discounts * goes_on)[:, None]
    discounts -= factors[:, -2]
    terms[:, :-2] = rewards
    terms[:, -1] = 1.0
    sums = np.zeros((num_rows, *shape[1:]), rewards.dtype)  # [T-n, D + 2, B]
    sums[:, -2] = 1.0
    for k in range(n, 0, -1):
        sums *= factors[k : k + num_rows]
        sums += terms[k : k + num_rows]
    num_steps = sums[:, -1] * goes_on[:num_rows]
    return sums[:, :-2], sums[:, -2], num_steps.astype(np.int64)
