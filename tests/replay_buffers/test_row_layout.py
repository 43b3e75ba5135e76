"""One step of any nest in one row of bytes, and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions as td

from alf_lite import nest
from alf_lite.data_structures import Experience, TimeStep
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


@settings(max_examples=60, deadline=None)
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


def test_a_name_that_is_not_unique_needs_a_path():
    spec = (TimeStep(step_type=TensorSpec(())), TimeStep(step_type=TensorSpec(())))
    layout = RowLayout(spec)
    with pytest.raises(ValueError, match="step_type_field"):
        layout.find("step_type")
    assert layout.find("step_type", "[1].step_type") == 1
    with pytest.raises(ValueError, match="not one tensor"):
        layout.find("step_type", "[1]")
    with pytest.raises(ValueError, match="found 0"):
        layout.find("reward")
