"""Tests of alf_lite.utils.recurrences, against loops."""

import numpy as np
import pytest
import torch

from alf_lite.utils.recurrences import linear_scan, reverse_linear_scan


def naive_recurrence(multipliers, increments, initial):
    rows, y = [], initial
    for a, b in zip(multipliers, increments, strict=True):
        y = a * y + b
        rows.append(y)
    return np.stack(rows)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 7, 8, 9, 64, 100])
def test_forwards_equals_a_loop(num_steps):
    rng = np.random.default_rng(num_steps)
    multipliers = rng.uniform(-1, 1, (num_steps, 3, 1))
    multipliers *= rng.random(multipliers.shape) < 0.8  # 0 starts anew
    increments = rng.normal(size=(num_steps, 3, 2))
    initial = rng.normal(size=(3, 2))
    np.testing.assert_allclose(
        linear_scan(increments, multipliers, initial),
        naive_recurrence(multipliers, increments, initial),
        rtol=1e-12,
        atol=1e-13,
    )


def test_arguments_are_left_as_they_were():
    arguments = np.full(9, 0.5), np.ones(9), np.array(2.0)
    before = [a.copy() for a in arguments]
    linear_scan(*arguments)
    reverse_linear_scan(*arguments)
    reverse_linear_scan(*map(torch.from_numpy, arguments[:2]), torch.tensor(2.0))
    for a, b in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 5, 8, 31, 129, 1000])
def test_backwards_equals_a_loop_to_rounding(num_steps):
    generator = torch.Generator().manual_seed(num_steps)
    a = torch.randn(num_steps, 3, 2, generator=generator)
    b = 0.999 * torch.rand(num_steps, 3, 1, generator=generator) ** 0.01
    final = torch.randn(3, 2, generator=generator)
    expected, x = [], final.double()
    for t in reversed(range(num_steps)):
        x = a[t].double() + b[t].double() * x
        expected.append(x)
    got = reverse_linear_scan(a, b, final)
    torch.testing.assert_close(
        got, torch.stack(expected[::-1]).float(), rtol=1e-5, atol=1e-5
    )
    arrays = reverse_linear_scan(a.numpy(), b.numpy(), final.numpy())
    np.testing.assert_array_equal(arrays, got.numpy())
