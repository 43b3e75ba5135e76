"""What a worker does before it acts, in this process."""

from __future__ import annotations

import pickle

import gin
import pytest
import torch

from alf_lite.config import configurable
from alf_lite.config import files as config_files
from alf_lite.config import shipping as config_shipping
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import TensorSpec
from alf_lite.unrollers import unroll_worker
from alf_lite.unrollers.unroll_worker import (
    PoolOptions,
    WorkerParts,
    WorkerSettings,
)


@configurable
def parts(seed: int, name: str = "unnamed") -> WorkerParts:
    return WorkerParts(name, seed)


def settings(recipe: bytes) -> WorkerSettings:
    options = PoolOptions(1, 1, False, 1, 0.0, 60.0, 0)
    return WorkerSettings(0, recipe, 3, options, {})


@pytest.mark.parametrize("scope", ["", "evening"])
def test_the_recipe_runs_in_the_scope_in_which_it_was_sent(scope):
    config_files.parse_config_text("parts.name = 'day'\nevening/parts.name = 'late'\n")
    with gin.config_scope(scope or None):
        dumped = config_shipping.dump(parts)
    config_files.reset()
    built = unroll_worker._build(settings(dumped))
    assert built == WorkerParts("late" if scope else "day", 3)


@pytest.mark.parametrize(
    "reference", [b"cno_such_module\nf\n.", b"calf_lite.nest\nno_such_name\n."]
)
def test_what_cannot_be_imported_is_named(reference):
    with pytest.raises((ImportError, AttributeError)):
        pickle.loads(reference)
    with pytest.raises(ConfigError, match=r"cannot be imported .*no_such_.*PYTHONPATH"):
        unroll_worker._build(settings(reference))


def test_tensors_come_in_the_order_of_the_trainer():
    tensors = {"a": torch.zeros(2), "b": torch.ones(3, dtype=torch.int64)}
    specs = {"b": TensorSpec((3,), dtype=torch.int64), "a": TensorSpec((2,))}
    ordered = unroll_worker._in_order(tensors, specs)
    assert ordered[0] is tensors["b"]
    assert ordered[1] is tensors["a"]


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": torch.zeros(2)},
        {"a": torch.zeros(2), "b": torch.zeros(4)},
        {"a": torch.zeros(2), "b": torch.zeros(3).double()},
        {"a": torch.zeros(2), "b": torch.zeros(3), "bias": torch.zeros(1)},
    ],
)
def test_an_algorithm_that_was_built_otherwise_is_refused(tensors):
    specs = {"a": TensorSpec((2,)), "b": TensorSpec((3,))}
    with pytest.raises(
        ConfigError, match=r"worker has b(ias)?: .* in training .*built alike"
    ):
        unroll_worker._in_order(tensors, specs)
