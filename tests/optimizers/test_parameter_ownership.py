"""Every parameter ends up with exactly one optimizer, or the error names it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import Parameter

from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizers import SGD, Adam
from alf_lite.optimizers.parameter_ownership import (
    Claim,
    assign_parameters,
    resolve_claims,
)


def parameters(*names):
    return {name: Parameter(torch.zeros(1)) for name in names}


def owned_names(named_parameters, claims):
    owned = resolve_claims(named_parameters, claims)
    return [[name for name, _ in part] for part in owned]


def of(*prefixes):
    """The own optimizer of the algorithm there."""
    return Claim(prefixes, SGD())


def given_for(*prefixes):
    """An optimizer that was given for these modules."""
    return Claim(prefixes, SGD(), explicit=True)


def test_own_optimizer_takes_everything_below():
    named = parameters("a.weight", "child.b.weight", "log_alpha")
    assert owned_names(named, [of("")]) == [list(named)]


def test_own_optimizer_leaves_what_a_child_claims():
    named = parameters("a.weight", "child.weight", "child.deep.weight", "children.w")
    assert owned_names(named, [of(""), of("child")]) == [
        ["a.weight", "children.w"],
        ["child.weight", "child.deep.weight"],
    ]


def test_the_nearest_of_nested_algorithms_takes_it():
    named = parameters("w", "a.w", "a.b.w", "a.b.c.w")
    got = owned_names(named, [of("a"), of("a.b.c"), of(""), of("a.b")])
    assert got == [["a.w"], ["a.b.c.w"], ["w"], ["a.b.w"]]


def test_added_optimizer_takes_its_modules_from_the_own_one():
    named = parameters("actor.w", "critic.w", "log_alpha", "rest.w")
    got = owned_names(
        named, [of(""), given_for("actor", "critic"), given_for("log_alpha")]
    )
    assert got == [["rest.w"], ["actor.w", "critic.w"], ["log_alpha"]]


def test_longest_of_overlapping_paths_counts():
    named = parameters("a.w", "a.b.w")
    added = given_for("a", "a.b")
    with pytest.raises(ConfigError, match=r"than one optimizer: a\.w:"):
        resolve_claims(named, [of("a"), added])
    del named["a.w"]
    assert owned_names(named, [of("a"), added]) == [[], ["a.b.w"]]


def test_unclaimed_parameters_are_named():
    named = parameters("actor.weight", "critic.weight", "critic.bias")
    with pytest.raises(
        ConfigError, match=r"no optimizer: critic\.weight, critic\.bias\."
    ):
        resolve_claims(named, [given_for("actor")])


def test_many_unclaimed_parameters_are_counted():
    named = parameters(*(f"p{i}" for i in range(20)))
    with pytest.raises(ConfigError, match=r"p7 and 12 more"):
        resolve_claims(named, [])


@pytest.mark.parametrize(
    "claims",
    [
        [given_for("a"), given_for("a.b")],
        [given_for("a"), of("a.b")],
        [of(""), given_for("a"), of("a.b")],
        [given_for("a.b", "c"), given_for("a")],
    ],
    ids=["added twice", "added and a child's own", "three", "overlapping lists"],
)
def test_parameters_claimed_twice_are_named_with_both_optimizers(claims):
    named = parameters("a.b.weight", "c.weight")
    with pytest.raises(ConfigError, match=r"a\.b\.weight: SGD of .* and SGD of .*a"):
        resolve_claims(named, claims)


def test_frozen_parameters_belong_to_nobody():
    named = parameters("online.w", "target.w")
    named["target.w"].requires_grad_(False)
    assert owned_names(named, [of("")]) == [["online.w"]]
    assert owned_names(named, [given_for("online")]) == [["online.w"]]


def test_prefixes_end_at_dots():
    named = parameters("alg1.w", "alg10.w", "alg1")
    assert owned_names(named, [given_for("alg1"), of("")]) == [
        ["alg1.w", "alg1"],
        ["alg10.w"],
    ]


def test_shared_parameter_is_given_once():
    shared = Parameter(torch.zeros(1))
    named = {"actor.encoder.w": shared, "critic.encoder.w": shared}
    assert owned_names(named, [of("")]) == [["actor.encoder.w"]]
    assert owned_names(named, [given_for("critic")]) == [["critic.encoder.w"]]


def test_shared_parameter_goes_to_the_child_that_claims_it():
    shared = Parameter(torch.zeros(1))
    named = {"encoder.w": shared, "child.encoder.w": shared}
    assert owned_names(named, [of(""), of("child")]) == [[], ["child.encoder.w"]]


def test_shared_parameter_of_two_claims_is_an_error_with_both_names():
    shared = Parameter(torch.zeros(1))
    named = {"a.encoder.w": shared, "b.encoder.w": shared}
    with pytest.raises(
        ConfigError, match=r"'a' \(as a.encoder.w\) and .*'b' \(as b.encoder.w\)"
    ):
        resolve_claims(named, [of("a"), of("b")])


def test_assignment_sets_the_optimizers_up_and_names_them():
    module = nn.ModuleDict({"actor": nn.Linear(2, 1), "critic": nn.Linear(2, 1)})
    default, critic = Adam(), SGD()
    claims = [Claim([""], default), Claim(["critic"], critic, explicit=True)]
    got = assign_parameters(dict(module.named_parameters()), claims)
    assert got == [("root", default), ("critic", critic)]
    assert default.parameters == list(module["actor"].parameters())
    assert critic.named_parameters[0][0] == "critic.weight"


def test_optimizer_without_parameters_is_allowed():
    named = parameters("child.w")
    (_, root), (_, child) = assign_parameters(named, [of(""), of("child")])
    assert (len(root.parameters), len(child.parameters)) == (0, 1)


def test_one_optimizer_object_for_two_algorithms_is_an_error():
    optimizer = SGD()
    claims = [Claim([""], optimizer), Claim(["child"], optimizer)]
    with pytest.raises(
        ConfigError, match=r"same optimizer object .*'root' and .*'child'"
    ):
        assign_parameters(parameters("child.w"), claims)
    assert optimizer.parameters == []


def test_two_optimizers_for_the_same_modules_are_an_error():
    with pytest.raises(ConfigError, match="two optimizers for the same modules"):
        assign_parameters(parameters("a.w"), [given_for("a"), of("a")])


paths = st.lists(st.sampled_from("abc"), min_size=0, max_size=3).map(".".join)


@pytest.mark.ci
@settings(max_examples=100)
@given(
    st.sets(paths.filter(bool), min_size=1, max_size=8),
    st.sets(paths, max_size=4),
)
def test_nearest_owner_takes_each_parameter_in_any_tree(modules, owners):
    named = parameters(*(f"{m}.w" for m in sorted(modules)))
    claims = [of(owner) for owner in sorted(owners)]

    def nearest(name):
        path = name.split(".")
        above = [".".join(path[:i]) for i in range(len(path), -1, -1)]
        return next((p for p in above if p in owners), None)

    if any(nearest(name) is None for name in named):
        with pytest.raises(ConfigError, match="no optimizer"):
            resolve_claims(named, claims)
        return
    for claim, names in zip(claims, owned_names(named, claims), strict=True):
        assert names == [n for n in named if nearest(n) == claim.prefixes[0]]
