"""What is counted of a source, and what is found to be wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from alf_lite.datasets.source import RecordedField, Source, StepSequence
from alf_lite.errors import DataError
from alf_lite.tools.step_statistics import Bounds, summarize

F, M, L = 0, 1, 2


class Recorded(Source):
    """Sequences as they are given: (environment, fields)."""

    name = "recorded"
    is_in_environment_units = False

    def __init__(self, *sequences: tuple[int, dict[str, Any]], num_environments=1):
        self._sequences = [
            StepSequence(env_id, {name: np.array(a) for name, a in fields.items()})
            for env_id, fields in sequences
        ]
        self.fields = {
            name: RecordedField(array.shape[1:], array.dtype)
            for name, array in self._sequences[0].fields.items()
        }
        self.lengths = [0] * num_environments
        for sequence in self._sequences:
            self.lengths[sequence.env_id] += len(sequence.fields["step_type"])

    def sequences(self):
        yield from self._sequences


def steps(step_type: list[int], **fields: Any) -> dict[str, Any]:
    """Every reward is 1, every LAST is terminal."""
    types = np.array(step_type, np.int32)
    return {
        "step_type": types,
        "reward": np.ones(len(types), np.float32),
        "discount": np.where(types == L, 0.0, 1.0).astype(np.float32),
        **fields,
    }


def test_counts_of_whole_and_cut_episodes():
    # The oldest step of the first episode was overwritten; the last goes on.
    source = Recorded((0, steps([M, L, F, M, M, L, F, M])))
    result = summarize(source)
    assert result.total_steps == 8
    assert result.num_environments == 1
    assert result.trainable_transitions == 5  # M→L, F→M, M→M, M→L, F→M
    assert result.complete_episodes == 1
    assert result.returns == [3.0]  # not 4: the FIRST step's belongs to nothing
    assert result.lengths == [3]
    assert result.average_return == 3.0
    assert (result.num_terminations, result.num_truncations) == (2, 0)
    assert result.num_seams == 0


def test_trainable_transitions_agree_with_a_loop():
    generator = np.random.default_rng(0)
    step_type = generator.integers(0, 3, 500)
    expected = sum(
        step_type[t] != L and step_type[t + 1] != F for t in range(len(step_type) - 1)
    )
    assert summarize(Recorded((0, steps(step_type)))).trainable_transitions == expected


def test_returns_agree_with_a_loop():
    generator = np.random.default_rng(1)
    step_type = generator.choice([F, M, M, L], 500)
    reward = generator.normal(size=500)
    expected, total = [], None
    for t, kind in enumerate(step_type):
        if kind == F:
            total = 0.0
        elif t and step_type[t - 1] == L:
            total = None
        elif total is not None:
            total += reward[t]
        if kind == L and total is not None:
            expected.append(total)
            total = None
    result = summarize(Recorded((0, steps(step_type, reward=reward))))
    assert len(expected) > 10
    assert result.returns == pytest.approx(expected)


def test_a_time_limit_is_no_termination():
    discount = np.ones(3, np.float32)
    result = summarize(Recorded((0, steps([F, M, L], discount=discount))))
    assert (result.num_terminations, result.num_truncations) == (0, 1)


def test_parts_of_a_reward_are_added():
    reward = [[9.0, 9.0], [1.0, 2.0], [3.0, 4.0]]
    result = summarize(Recorded((0, steps([F, M, L], reward=reward))))
    assert result.returns == [10.0]


def test_seams_are_told_within_and_between_sequences():
    source = Recorded(
        (0, steps([F, M, F, M])),  # cut before step 2
        (1, steps([F, L])),
        (0, steps([M, L])),
        (0, steps([F, M])),  # continues nothing, but nothing is missing
        (1, steps([M])),  # its FIRST is missing
        num_environments=2,
    )
    result = summarize(source)
    assert result.total_steps == 11
    assert result.seams == [
        "before step 2 of environment 0",
        "before step 2 of environment 1",
    ]
    assert result.num_seams == 2


def test_a_sequence_that_goes_on_elsewhere_is_no_transition():
    source = Recorded((0, steps([F, M])), (0, steps([F, L])))
    result = summarize(source)
    assert result.trainable_transitions == 2
    assert result.seams == ["before step 2 of environment 0"]


def test_numbers_that_are_not_finite_are_found_in_every_field():
    observation = np.zeros((4, 2), np.float32)
    observation[1, 0] = np.inf
    observation[3, 1] = np.nan
    fields = steps([F, M, M, L], observation=observation, reward=[0, 0, np.nan, 0.0])
    source = Recorded((0, steps([F, L], observation=observation[::3])), (0, fields))
    result = summarize(source)
    assert result.not_finite.count == 4
    assert result.not_finite.places == [
        "observation[1] is nan at step 1 of environment 0",
        "reward is nan at step 4 of environment 0",
        "observation[0] is inf at step 3 of environment 0",
        "observation[1] is nan at step 5 of environment 0",
    ]


def test_only_the_first_places_are_listed():
    fields = steps([F, *[M] * 50], reward=np.full(51, np.nan))
    result = summarize(Recorded((0, fields)))
    assert result.not_finite.count == 51
    assert len(result.not_finite.places) == 10


def test_values_beyond_their_bounds_are_found_element_by_element():
    observation = [[0.0, 5.0], [-1.0, 5.0], [0.0, 9.0]]
    bounds = {"observation": Bounds(np.array([0.0, -np.inf]), np.array([1.0, 8.0]))}
    fields = steps([F, M, L], observation=observation)
    result = summarize(Recorded((0, fields)), bounds)
    assert result.out_of_bounds.count == 2
    assert result.out_of_bounds.places == [
        "observation[0] is -1.0 at step 1 of environment 0",
        "observation[1] is 9.0 at step 2 of environment 0",
    ]


@pytest.mark.parametrize(
    ("name", "values", "places"),
    [
        ("prev_action", [7, 0, 8, 7], ["prev_action is 8 at step 2 of environment 0"]),
        ("action", [8, 0, 7], ["action is 8 at step 0 of environment 0"]),
    ],
)
def test_what_stands_where_no_action_was_taken_may_be_anything(name, values, places):
    fields = steps([F, M, L, F], **{name: values})
    if name == "prev_action":
        fields["step_type"][:] = [F, M, M, F]
    result = summarize(Recorded((0, fields)), {name: Bounds(0, 1)})
    assert result.out_of_bounds.places == places


def test_long_fields_are_looked_at_piece_by_piece(monkeypatch):
    monkeypatch.setattr("alf_lite.tools.step_statistics._CHUNK_VALUES", 4)
    observation = np.zeros((9, 2))
    observation[7, 1] = np.nan
    observation[4, 0] = 2
    fields = steps([F, *[M] * 8], observation=observation)
    result = summarize(Recorded((0, fields)), {"observation": Bounds(0, 1)})
    where = "of environment 0"
    assert result.not_finite.places == [f"observation[1] is nan at step 7 {where}"]
    assert result.out_of_bounds.places == [f"observation[0] is 2.0 at step 4 {where}"]


def test_a_step_type_that_there_is_not_is_an_error():
    with pytest.raises(DataError, match="step_type is 3 at step 1 of a sequence of"):
        summarize(Recorded((0, steps([F, 3]))))


def test_nothing_has_no_average():
    result = summarize(Recorded((0, steps([]))))
    assert (result.total_steps, result.average_return) == (0, None)
