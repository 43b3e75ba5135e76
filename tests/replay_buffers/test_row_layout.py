"""One step of any nest in one row of bytes, and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions as td

from alf_lite import nest
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.distributions import functions  # noqa: F401  (registers the nodes)
from alf_lite.replay_buffers.row_layout import RowLayout
from alf_lite.tensor_specs import TensorSpec

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
SPEC = TimeStep(reward=TensorSpec(()), observation={"arm": TensorSpec((7,))})


def specs():
    leaf = st.builds(
        TensorSpec,
        st.lists(st.integers(0, 3), max_size=3),
        st.sampled_from(DTYPES),
    )
    return st.recursive(
        leaf,
        lambda child: st.one_of(
            st.tuples(child, child),
            st.dictionaries(st.sampled_from("abc"), child, min_size=1),
            st.tuples(child, child).map(
                lambda pair: TimeStep(observation=pair[0], reward=pair[1])
            ),
        ),
        max_leaves=6,
    )


def copy_through_rows(layout: RowLayout, batch, *outer_dims: int):
    rows = torch.empty((*outer_dims, layout.row_bytes), dtype=torch.uint8)
    for view, leaf in zip(layout.views(rows), nest.flatten(batch), strict=True):
        view.copy_(leaf)
    return layout.pack(layout.views(rows.clone()))


@settings(max_examples=60)
@given(specs(), st.lists(st.integers(1, 3), max_size=2))
def test_rows_give_back_what_was_put_in(spec, outer_dims):
    if not any(leaf.numel for leaf in nest.flatten(spec)):
        with pytest.raises(ValueError, match="nothing to store"):
            RowLayout(spec)
        return
    batch = nest.map_structure(lambda s: s.sample(outer_dims), spec)
    returned = copy_through_rows(RowLayout(spec), batch, *outer_dims)
    nest.assert_same_structure(batch, returned)
    for expected, got in zip(nest.flatten(batch), nest.flatten(returned), strict=True):
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)


def test_a_row_has_no_gaps_but_for_its_end():
    layout = RowLayout(
        {
            "flag": TensorSpec((), torch.bool),
            "frame": TensorSpec((3, 5), torch.uint8),
            "goal": TensorSpec((3,)),
            "choice": TensorSpec((), torch.int64),
        }
    )
    # 8 + 3 * 4 + 15 + 1 = 36, and the widest dtype has 8 bytes.
    assert layout.row_bytes == 40


def test_distributions_are_stored_as_their_parameters():
    batch = Experience(
        rollout_info={
            "discrete": td.Categorical(logits=torch.randn(3, 4), validate_args=False),
            "continuous": td.Independent(
                td.Normal(torch.randn(3, 2), torch.rand(3, 2), validate_args=False),
                1,
                validate_args=False,
            ),
        }
    )
    layout = RowLayout(nest.extract_spec(batch))
    returned = copy_through_rows(layout, batch, 3).rollout_info
    actions = {"discrete": torch.tensor([0, 3, 2]), "continuous": torch.randn(3, 2)}
    for name, action in actions.items():
        expected = batch.rollout_info[name].log_prob(action)
        torch.testing.assert_close(returned[name].log_prob(action), expected)


@pytest.mark.parametrize("spec", [(), {}, TimeStep(), TensorSpec((0,))])
def test_a_spec_without_data_is_refused(spec):
    with pytest.raises(ValueError, match="nothing to store"):
        RowLayout(spec)


def test_a_spec_that_is_a_tensor_is_refused():
    with pytest.raises(TypeError, match="reward must be a TensorSpec"):
        RowLayout(TimeStep(reward=torch.zeros(())))


def test_fields_are_selected_by_path():
    layout = RowLayout(
        TimeStep(
            reward=TensorSpec(()),
            observation={"arm": TensorSpec(()), "leg": (TensorSpec(()),) * 2},
        )
    )
    assert layout.select("reward") == 0
    assert layout.select("observation['arm']") == 1
    assert layout.select("observation['leg']") == (2, 3)
    assert layout.select("observation['leg'][1]") == 3
    assert layout.select("observation") == {"arm": 1, "leg": (2, 3)}


def test_a_single_tensor_is_selected_as_the_root():
    assert RowLayout(TensorSpec(())).select("<root>") == 0


@pytest.mark.parametrize(
    "field", ["rewards", "observation['leg']", "observation[0]", "reward[0]", "a b"]
)
def test_an_unknown_field_lists_the_known_ones(field):
    layout = RowLayout(
        TimeStep(reward=TensorSpec(()), observation={"arm": TensorSpec(())})
    )
    with pytest.raises(ValueError, match=r"reward, observation\['arm'\]"):
        layout.select(field)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Experience(time_step=TimeStep(step_type=TensorSpec(()))), 0),
        ({"a": TensorSpec(()), "step_type": TensorSpec(())}, 1),
    ],
)
def test_a_leaf_is_found_by_its_name(spec, expected):
    assert RowLayout(spec).find("step_type") == expected


def test_a_name_that_is_not_unique_is_an_error():
    spec = (TimeStep(step_type=TensorSpec(())), TimeStep(step_type=TensorSpec(())))
    layout = RowLayout(spec)
    with pytest.raises(ValueError, match="named step_type, found 2"):
        layout.find("step_type")
    with pytest.raises(ValueError, match="found 0"):
        layout.find("reward")


def flatten(spec, batch, *outer_dims: int, keep_arrays: bool = True) -> list:
    layout = RowLayout(spec)
    return layout.flatten(batch, layout.expect(*outer_dims), keep_arrays)


def time_step(reward, arm) -> TimeStep:
    return TimeStep(reward=reward, observation={"arm": arm})


def test_tensors_and_arrays_stay_what_they_are():
    tensors = time_step(torch.ones(3), torch.zeros(3, 7))
    arrays = time_step(np.ones(3, np.float32), np.zeros((3, 7), np.float32))
    for batch in (tensors, arrays):
        leaves = flatten(SPEC, batch, 3)
        assert leaves[0] is batch.reward
        assert leaves[1] is batch.observation["arm"]


@pytest.mark.parametrize("keep_arrays", [True, False])
def test_a_batch_of_both_becomes_tensors(keep_arrays):
    ones, zeros = np.ones(3, np.float32), torch.zeros(3, 7)
    for batch in (time_step(ones, zeros), time_step(torch.ones(3), zeros.numpy())):
        leaves = flatten(SPEC, batch, 3, keep_arrays=keep_arrays)
        assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
        assert leaves[0].tolist() == [1, 1, 1]


def test_arrays_become_tensors_where_they_cannot_be_copied_to():
    array = np.arange(3, dtype=np.float32)[::-1]  # torch knows no negative strides
    array.flags.writeable = False
    (leaf,) = flatten(TensorSpec(()), array, 3, keep_arrays=False)
    assert isinstance(leaf, torch.Tensor)
    assert leaf.tolist() == [2, 1, 0]


def test_another_distribution_than_the_spec_is_refused():
    spec = nest.extract_spec(td.Categorical(logits=torch.zeros(1, 4)))
    with pytest.raises(ValueError, match="Categorical"):
        flatten(spec, td.Bernoulli(logits=torch.zeros(1, 4)), 1)


def test_gradients_are_left_behind():
    with_gradient = torch.ones(3, requires_grad=True) * 2
    for arm in (torch.zeros(3, 7), np.zeros((3, 7), np.float32)):
        leaves = flatten(SPEC, time_step(with_gradient, arm), 3)
        assert not any(leaf.requires_grad for leaf in leaves)


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            time_step(torch.zeros(3), torch.zeros(3, 6)),
            r"observation\['arm'\]: expected shape \(3, 7\) and torch.float32, got "
            r"\(3, 6\)",
        ),
        (
            time_step(torch.zeros(3).double(), torch.zeros(3, 7)),
            r"reward: expected shape \(3,\) and torch.float32, got \(3,\) and "
            r"(torch\.)?float64",
        ),
        (
            TimeStep(reward=torch.zeros(3), observation={"leg": torch.zeros(3, 7)}),
            "observation",
        ),
        (time_step(torch.zeros(3), (torch.zeros(3, 7),)), r"observation\['arm'\]"),
        (torch.zeros(3), "<root>"),
    ],
)
def test_a_batch_that_does_not_match_is_refused_by_path(as_array, batch, message):
    if as_array:
        batch = nest.map_structure(lambda tensor: tensor.numpy(), batch)
    with pytest.raises(ValueError, match=message):
        flatten(SPEC, batch, 3)


@pytest.mark.parametrize("arm", [torch.zeros(3, 7), np.zeros((3, 7), np.float32)])
@pytest.mark.parametrize("reward", [1.0, np.float32(1), [1.0, 1.0, 1.0]])
def test_what_is_neither_a_tensor_nor_an_array_is_refused_by_path(arm, reward):
    with pytest.raises((TypeError, ValueError), match="reward"):
        flatten(SPEC, time_step(reward, arm), 3)


def test_one_wrong_leaf_among_both_kinds_is_refused_by_path():
    wrong = np.zeros((3, 7))
    with pytest.raises(ValueError, match=r"\['arm'\].* got \(3, 7\) and float64"):
        flatten(SPEC, time_step(torch.zeros(3), wrong), 3)


def test_arrays_with_other_bytes_are_refused():
    big_endian = np.zeros(3, ">f4")
    with pytest.raises(ValueError, match=r"<root>: expected .* and >f4"):
        flatten(TensorSpec(()), big_endian, 3)


def test_no_array_is_taken_for_a_dtype_that_numpy_does_not_have():
    spec = TensorSpec((), torch.bfloat16)
    with pytest.raises(ValueError, match=r"torch\.bfloat16, got \(3,\) and int16"):
        flatten(spec, np.zeros(3, np.int16), 3)
    (leaf,) = flatten(spec, torch.zeros(3, dtype=torch.bfloat16), 3)
    assert leaf.dtype == torch.bfloat16
