from __future__ import annotations

import pytest
import torch

from alf_lite.algorithms.parts.reward_weights import (
    LagrangianRewardWeights,
    RewardWeights,
)
from alf_lite.data_structures import TimeStep
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import TensorSpec

SPEC = TensorSpec((3,))


def steps(*rewards: tuple[float, float, float]) -> TimeStep:
    """Two environments [T, 2]; the first step of the second one is FIRST."""
    reward = torch.tensor(rewards).unsqueeze(1).repeat(1, 2, 1)
    step_type = torch.ones(len(rewards), 2, dtype=torch.int32)
    step_type[0, 1] = 0
    reward[0, 1] = 0.0
    return TimeStep(step_type=step_type, reward=reward)


def test_weights_rise_while_a_part_is_below_its_threshold_and_fall_above():
    weights = LagrangianRewardWeights(
        SPEC,
        thresholds=[None, 0.5, 0.0],
        initial_weights=[2.0, 1.0, 1.0],
        learning_rate=0.1,
        max_weight=1.03,
    )
    assert weights.weights.tolist() == pytest.approx([0.5, 0.25, 0.25])
    # Means without the FIRST step: 0, 0.2 and 10.
    weights.observe(steps((0.0, 0.6, 10.0), (0.0, 0.0, 10.0)))
    multipliers = [2.0, 1.03, 0.0]  # 1 + 0.03 and max(1 - 1, 0)
    expected = [m / sum(multipliers) for m in multipliers]
    assert weights.weights.tolist() == pytest.approx(expected)
    weights.observe(steps((0.0, -9.0, -0.5)))  # at most max_weight
    multipliers = [2.0, 1.03, 0.05]
    expected = [m / sum(multipliers) for m in multipliers]
    assert weights.weights.tolist() == pytest.approx(expected)
    assert weights(torch.ones(4, 3)).tolist() == pytest.approx([1.0] * 4)
    weights.set([1.0, 1.0, 2.0])
    assert weights.weights.tolist() == pytest.approx([0.25, 0.25, 0.5])


@pytest.mark.parametrize("spec", [TensorSpec(()), SPEC])
@pytest.mark.parametrize("weights", [2.0, "abc", [[1.0]], ["a", "b", "c"]])
def test_weights_that_are_no_numbers_are_refused(spec, weights):
    with pytest.raises(ConfigError, match="must be a list with a number for each"):
        RewardWeights(spec, weights)


@pytest.mark.parametrize(
    ("spec", "thresholds", "initial", "message"),
    [
        (TensorSpec(()), [0.0], None, "only one dimension"),
        (SPEC, [0.0], None, "1 thresholds for a reward of 3 dimensions"),
        (SPEC, [None] * 3, None, "a threshold for some parts"),
        (SPEC, [None, 0.0, 0.0], [0.0, 1.0, 1.0], "positive weight for one without"),
    ],
)
def test_thresholds_that_do_not_fit_are_refused(spec, thresholds, initial, message):
    with pytest.raises(ConfigError, match=message):
        LagrangianRewardWeights(spec, thresholds=thresholds, initial_weights=initial)
