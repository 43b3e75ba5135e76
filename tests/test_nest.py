from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from alf_lite import nest
from alf_lite.data_structures import AlgStep, TimeStep
from alf_lite.tensor_specs import TensorSpec


class Pair(NamedTuple):
    left: Any = ()
    right: Any = ()


def example() -> TimeStep:
    return TimeStep(
        reward=torch.tensor([1.0, 2.0]),
        observation={"b": torch.zeros(2, 3), "a": (torch.ones(2), [torch.ones(2, 1)])},
    )


def test_flatten_and_pack_are_inverse():
    original = example()
    packed = nest.pack_sequence_as(original, nest.flatten(original))
    assert type(packed) is TimeStep
    assert isinstance(packed.observation["a"][1], list)
    assert all(
        x is y
        for x, y in zip(nest.flatten(original), nest.flatten(packed), strict=True)
    )


def test_dict_leaves_come_in_sorted_order_and_fields_in_their_own():
    paths = [path for path, _ in nest.flatten_with_path(example())]
    assert paths == [
        "reward",
        "observation['a'][0]",
        "observation['a'][1][0]",
        "observation['b']",
    ]


def test_a_single_tensor_is_a_nest():
    (pair,) = nest.flatten_with_path(torch.ones(2))
    assert pair[0] == "<root>"
    assert nest.map_structure(lambda t: t + 1, torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("empty", [(), None, {}, [], Pair(), ((), {"a": ()})])
def test_nests_without_leaves_are_empty(empty):
    assert nest.is_empty(empty)
    assert nest.flatten(empty) == []
    assert nest.map_structure(torch.neg, empty) == empty


def test_the_compiler_of_torch_sees_whether_a_dict_is_empty():
    is_empty = torch.compile(nest.is_empty, backend="eager", fullgraph=True)
    assert not is_empty({"a": (), "b": torch.ones(2)})
    assert is_empty({"a": ()})


def test_map_structure_over_several_nests():
    total = nest.map_structure(
        lambda x, y, z: x + y + z, example(), example(), example()
    )
    assert total.reward.tolist() == [3.0, 6.0]
    assert total.observation["a"][1][0].tolist() == [[3.0], [3.0]]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (example()._replace(reward=()), r"at reward: expected a tensor.*got an empty"),
        (
            example()._replace(observation={"b": torch.zeros(2, 3)}),
            r"at observation: missing \['a'\]",
        ),
        (
            example()._replace(observation={"b": {"x": 1}, "a": (1, [1])}),
            r"at observation\['b'\]: expected a tensor .* got a dict with 1 leaves",
        ),
        (
            example()._replace(observation={"b": 1, "a": (1, (1,))}),
            r"at observation\['a'\]\[1\]: expected a list, got a tuple",
        ),
        (AlgStep(output=1), r"at <root>: expected a TimeStep, got a AlgStep"),
    ],
)
def test_different_structures_are_refused_with_the_path(other, message):
    with pytest.raises(ValueError, match=message):
        nest.map_structure(lambda x, y: x, example(), other)
    with pytest.raises(ValueError, match=message):
        nest.assert_same_structure(example(), other)


def test_a_leaf_does_not_absorb_a_sub_nest():
    with pytest.raises(ValueError, match="differ at left"):
        nest.map_structure(lambda x, y: x, Pair(1, 2), Pair((3, 4), 2))


def test_pack_sequence_as_counts_the_values():
    with pytest.raises(ValueError, match="4 leaves, got 2"):
        nest.pack_sequence_as(example(), [1, 2])


def test_map_structure_with_path_names_every_leaf():
    named = nest.map_structure_with_path(lambda path, t: path, example())
    assert named.observation["a"][0] == "observation['a'][0]"


def test_stack_adds_a_dimension_and_cat_does_not():
    stacked = nest.stack([example()] * 4)
    assert stacked.observation["b"].shape == (4, 2, 3)
    assert nest.stack([example()] * 4, dim=1).reward.shape == (2, 4)
    assert nest.cat([example()] * 4).observation["b"].shape == (8, 3)


def test_stack_refuses_different_structures_and_nothing():
    with pytest.raises(ValueError, match="reward"):
        nest.stack([example(), example()._replace(reward=())])
    with pytest.raises(ValueError, match="no nests"):
        nest.stack([])


def test_extract_spec_and_zeros_are_inverse_up_to_values():
    specs = nest.extract_spec(example())
    assert specs.observation["b"] == TensorSpec((3,))
    zeros = nest.zeros(specs, (2,))
    assert zeros.observation["b"].shape == (2, 3)
    nest.assert_same_structure(zeros, example())


def test_batch_size_is_shared_by_all_leaves():
    assert nest.batch_size(example()) == 2
    with pytest.raises(ValueError, match="disagree"):
        nest.batch_size((torch.ones(2), torch.ones(3)))
    with pytest.raises(ValueError, match="no leaves"):
        nest.batch_size(())


def test_registered_types_are_inner_nodes():
    class Box:
        def __init__(self, content: Any, label: str) -> None:
            self.content = content
            self.label = label

    nest.register_node(
        Box, lambda b: ((b.content,), b.label), lambda label, c: Box(c[0], label)
    )
    doubled = nest.map_structure(lambda x: 2 * x, {"box": Box(3, "a")})
    assert (doubled["box"].content, doubled["box"].label) == (6, "a")
    with pytest.raises(ValueError, match="different kinds"):
        nest.assert_same_structure(Box(1, "a"), Box(1, "b"))


def test_unstack_is_the_reverse_of_stack():
    nests = [{"a": torch.tensor([i, 1]), "b": (torch.tensor(2 * i),)} for i in range(3)]
    for one, same in zip(nests, nest.unstack(nest.stack(nests)), strict=True):
        assert nest.map_structure(torch.equal, one, same) == {"a": True, "b": (True,)}
    rows = nest.unstack({"a": np.arange(6).reshape(3, 2)})
    assert [row["a"].tolist() for row in rows] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("part", [(), (torch.zeros(1),), {"x": torch.zeros(1)}, None])
def test_a_leaf_never_matches_a_nest(part):
    tensor = torch.zeros(1)
    with pytest.raises(ValueError, match=r"differ at \['b'\]"):
        nest.map_structure(torch.add, {"a": tensor, "b": tensor}, {"a": 1, "b": part})
    with pytest.raises(ValueError, match=r"differ at \['b'\]"):
        nest.stack([{"a": tensor, "b": tensor}, {"a": tensor, "b": part}])
