"""Priorities to weights, weights to corrections of the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from alf_lite.replay_buffers.priority_options import PriorityOptions
from alf_lite.utils.progress import Progress, follow_progress
from alf_lite.utils.ranks import ranks
from alf_lite.utils.schedulers import LinearScheduler

PRIORITIES = np.array([1.0, 2.0, 4.0, 8.0])


def corrections(options: PriorityOptions, priorities, drawn=slice(None)) -> np.ndarray:
    weights = options.weights(np.asarray(priorities, float))
    return options.importance_weights(weights[drawn], weights.mean(), weights.min())


def test_weights_are_powers_of_the_priorities():
    weights = PriorityOptions(alpha=0.6, eps=0).weights(PRIORITIES)
    assert weights == pytest.approx([1, 1.515717, 2.297397, 3.482202], abs=1e-6)


def test_eps_is_added_before_the_power():
    weights = PriorityOptions(alpha=0.5, eps=0.25).weights(np.array([0.0, 2.0]))
    assert weights == pytest.approx([0.5, 1.5])


def test_a_negative_zero_is_a_zero():
    assert PriorityOptions(alpha=1, eps=0.5).weights(np.array([-0.0])) == [0.5]


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [
        ("buffer", [1, 0.846745, 0.716978, 0.607097]),
        ("batch", [1, 0.846745, 0.716978, 0.607097]),
        ("none", [1.338780, 1.133606, 0.959875, 0.812770]),
    ],
)
def test_importance_weights_of_a_whole_buffer(normalization, expected):
    options = PriorityOptions(alpha=0.6, beta=0.4, eps=0, normalization=normalization)
    assert corrections(options, PRIORITIES) == pytest.approx(expected, abs=1e-6)


def test_importance_weights_of_a_batch_are_scaled_by_buffer_or_batch():
    drawn = [2, 3]
    by_buffer = PriorityOptions(alpha=0.6, beta=0.4, eps=0, normalization="buffer")
    by_batch = PriorityOptions(alpha=0.6, beta=0.4, eps=0)
    assert corrections(by_buffer, PRIORITIES, drawn) == pytest.approx(
        [0.716978, 0.607097], abs=1e-6
    )
    assert corrections(by_batch, PRIORITIES, drawn) == pytest.approx(
        [1, 0.846745], abs=1e-6
    )


@pytest.mark.parametrize("normalization", ["buffer", "batch", "none"])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_importance_weights_are_the_same_on_a_device(
    monkeypatch, normalization, num_ranks
):
    # The other rank has half of the least weight.
    monkeypatch.setattr(ranks, "size", num_ranks)
    monkeypatch.setattr(ranks, "gather", lambda least: torch.stack([least, least / 2]))
    options = PriorityOptions(normalization=normalization)
    expected = corrections(options, PRIORITIES)
    weights = options.powers(torch.tensor(PRIORITIES))
    found = options.importance_weights(weights, weights.mean(), weights.amin())
    assert found.dtype == torch.float32
    assert found.numpy() == pytest.approx(expected)
    if normalization != "none":
        assert expected.max() == pytest.approx(0.5**0.4 if num_ranks == 2 else 1.0)


def test_one_tiny_error_in_the_buffer_does_not_scale_the_losses_of_all_batches():
    errors = np.geomspace(1e-3, 10.0, 1000)
    errors[0] = 0.0
    drawn = slice(500, None, 10)
    assert corrections(PriorityOptions(), errors, drawn).mean() > 0.5
    by_buffer = PriorityOptions(normalization="buffer")
    assert corrections(by_buffer, errors, drawn).mean() < 0.05


def test_full_exponents():
    options = PriorityOptions(alpha=1, beta=0.5, eps=0)
    assert corrections(options, PRIORITIES) == pytest.approx(
        [1, 0.707107, 0.5, 0.353553], abs=1e-6
    )
    options = PriorityOptions(alpha=1, beta=1, eps=0)
    assert corrections(options, [1, 2, 3, 4]) == pytest.approx(
        [1, 0.5, 1 / 3, 0.25], abs=1e-6
    )


@pytest.mark.parametrize("zero", ["alpha", "beta"])
def test_no_correction_without_an_exponent(zero):
    options = PriorityOptions(**{zero: 0.0})
    assert corrections(options, PRIORITIES) == pytest.approx(np.ones(4))


def test_exponents_may_be_schedules():
    beta = iter([0.4, 1.0])
    options = PriorityOptions(alpha=lambda: 1.0, beta=lambda: next(beta), eps=0)
    assert corrections(options, [1, 4]) == pytest.approx([1, 0.25**0.4])
    assert corrections(options, [1, 4]) == pytest.approx([1, 0.25])


def test_exponents_may_be_points_over_the_run():
    progress = Progress()
    options = PriorityOptions(alpha=1.0, beta=((0.0, 0.4), (1.0, 1.0)), eps=0)
    follow_progress([options], progress)
    for share, beta in ((0.0, 0.4), (0.5, 0.7), (1.0, 1.0)):
        progress.percent = share
        assert corrections(options, [1, 4]) == pytest.approx([1, 0.25**beta])


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_a_priority_that_is_no_magnitude_is_refused(wrong):
    with pytest.raises(ValueError, match=r"1 of 3 are not, such as .* at index 1"):
        PriorityOptions().weights(np.array([1.0, wrong, 2.0]))


@pytest.mark.parametrize(
    "arguments",
    [
        {"normalization": "max"},
        {"eps": -1.0},
        {"alpha": -0.1},
        {"alpha": LinearScheduler([(0.0, 0.6), (1.0, -0.1)])},
        {"beta": float("nan")},
        {"initial_priority": 0.0},
    ],
)
def test_wrong_options_are_refused_by_name(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        PriorityOptions(**arguments)
