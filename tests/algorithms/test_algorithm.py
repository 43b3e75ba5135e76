from __future__ import annotations

import pytest
import torch
from torch import nn

from alf_lite.algorithms.algorithm import Algorithm, valid_steps
from alf_lite.algorithms.learning.batch_loss import LossFunction
from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.data_structures import AlgStep, TimeStep
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.optimizers.optimizers import SGD
from alf_lite.tensor_specs import TensorSpec


class Counter(Algorithm):
    """The info is the state before each step, which counts the steps of the episode."""

    def __init__(self, **kwargs) -> None:
        super().__init__(train_state_spec=TensorSpec((), torch.int64), **kwargs)

    def train_step(self, inputs, state, rollout_info):
        assert inputs.reward.ndim == 1
        return AlgStep(state=state + 1, info=(state, rollout_info))


class Stateless(Algorithm):
    def train_step(self, inputs, state, rollout_info):
        self.seen = tuple(inputs.reward.shape)
        return AlgStep(info={"twice": 2 * inputs.reward})


class Parent(Algorithm):
    """A child algorithm with parameters, and some of its own."""

    forwarded_children = ("child",)

    def __init__(self, child: Algorithm, **kwargs) -> None:
        super().__init__(**kwargs)
        self.child = child
        self.net = nn.Linear(2, 2)


class Child(Algorithm):
    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.net = nn.Linear(2, 1)


def steps(step_type: list[list[int]]) -> TimeStep:
    types = torch.tensor(step_type, dtype=torch.int32)
    return TimeStep(step_type=types, reward=torch.arange(float(types.numel())))


def test_another_default_dtype_is_refused():
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ConfigError, match=r"Stateless .* is torch\.float64\. Call"):
            Stateless()
    finally:
        torch.set_default_dtype(torch.float32)


def test_recurrent_training_runs_step_by_step_and_resets_at_first():
    inputs = steps([[1, 0], [2, 1], [0, 1], [1, 1]])
    inputs = inputs._replace(reward=inputs.reward.reshape(4, 2))
    state = torch.tensor([5, 7])
    batch = TrainingBatch(inputs, torch.ones(4, 2), (), torch.ones(4, 2))
    algorithm = Counter()
    (before, info), after = LossFunction(algorithm).info(batch, state)
    assert after.tolist() == [2, 4]
    assert before.tolist() == [[5, 0], [6, 1], [0, 2], [1, 3]]
    assert info.shape == (4, 2)


def test_stateless_training_gets_all_steps_in_one_call():
    algorithm = Stateless()
    inputs = steps([[1, 0], [2, 1], [0, 1]])
    inputs = inputs._replace(reward=inputs.reward.reshape(3, 2))
    batch = TrainingBatch(inputs, (), (), torch.ones(3, 2))
    info, _ = LossFunction(algorithm).info(batch)
    assert algorithm.seen == (6,)
    assert torch.equal(info["twice"], 2 * inputs.reward)


def test_state_specs_default_to_the_train_state_spec():
    spec = TensorSpec((3,))
    algorithm = Algorithm(train_state_spec=spec)
    assert algorithm.rollout_state_spec == algorithm.predict_state_spec == spec
    assert algorithm.get_initial_predict_state(4).shape == (4, 3)
    other = TensorSpec((2,))
    algorithm = Algorithm(train_state_spec=spec, rollout_state_spec=other)
    assert algorithm.predict_state_spec == other
    assert algorithm.get_initial_train_state(4).shape == (4, 3)
    assert Algorithm().get_initial_rollout_state(4) == ()


def test_valid_steps_are_those_with_a_transition():
    assert valid_steps(torch.tensor([0, 1, 2])).tolist() == [True, True, False]


@pytest.mark.parametrize("method", ["rollout_step", "train_step", "calc_loss"])
def test_a_missing_method_is_named(method):
    arguments = {"rollout_step": (0, 0), "train_step": (0, 0, 0), "calc_loss": (0,)}
    with pytest.raises(NotImplementedError, match=f"Child has no {method}"):
        getattr(Child(), method)(*arguments[method])


def test_a_child_without_optimizer_is_trained_by_its_parents():
    parent = Parent(Child(), optimizer=SGD(lr=1.0))
    ((name, optimizer),) = parent.optimizers()
    assert name == "root"
    assert len(optimizer.parameters) == 4


def test_a_child_with_optimizer_keeps_its_parameters():
    parent = Parent(Child(optimizer=SGD(lr=2.0)), optimizer=SGD(lr=1.0))
    rates = {name: o.learning_rate for name, o in parent.optimizers()}
    assert rates == {"root": 1.0, "child": 2.0}
    names = {
        o.learning_rate: [n for n, _ in o.named_parameters]
        for _, o in parent.optimizers()
    }
    assert names == {
        1.0: ["net.weight", "net.bias"],
        2.0: ["child.net.weight", "child.net.bias"],
    }


def test_a_parameter_that_nobody_trains_is_named():
    with pytest.raises(ConfigError, match=r"no optimizer: net\.weight"):
        Parent(Child(optimizer=SGD(lr=1.0))).optimizers()


class Forgetful(Algorithm):
    """Calls the methods of nothing below ``helpers``, and says so of ``child``."""

    forwarded_children = ("child",)

    def __init__(self, child: Algorithm, *helpers: Algorithm) -> None:
        super().__init__(optimizer=SGD(lr=1.0))
        self.child = child
        self.helpers = nn.ModuleList(helpers)


@pytest.mark.parametrize(
    ("parent", "message"),
    [
        (Forgetful(Child(), Child()), r"helpers\.0 \(Child\)"),
        (Forgetful(Forgetful(Child(), Counter())), r"helpers\.0 \(Counter\)"),
    ],
)
def test_a_child_that_nobody_trains_is_named(parent, message):
    with pytest.raises(ConfigError, match=f"nobody trains .*{message}") as error:
        parent.setup_training()
    assert "forwarded_children = ('helpers',)" in str(error.value)


def saved(tmp_path, algorithm: Algorithm) -> str:
    checkpointer = Checkpointer(tmp_path)
    return str(checkpointer.save(1, {"algorithm": algorithm.state_dict()}, {}, {}))


def test_a_part_of_a_checkpoint_is_loaded_into_a_child(tmp_path):
    source = Parent(Child())
    path = saved(tmp_path, source)
    child = Child(checkpoint=f"child@{path}")
    parent = Parent(child, optimizer=SGD(lr=1.0))
    before = parent.net.weight.clone()
    parent.setup_training()
    assert torch.equal(child.net.weight, source.child.net.weight)
    assert torch.equal(parent.net.weight, before)


def test_loading_happens_once_so_that_training_is_not_undone(tmp_path):
    path = saved(tmp_path, Child())
    algorithm = Child(optimizer=SGD(lr=1.0), checkpoint=f"@{path}")
    algorithm.setup_training()
    with torch.no_grad():
        algorithm.net.weight.fill_(3.0)
    algorithm.setup_training()
    assert (algorithm.net.weight == 3.0).all()


def test_a_part_that_does_not_fit_is_refused(tmp_path):
    path = saved(tmp_path, Parent(Child()))
    child = Child(checkpoint=f"net@{path}")
    with pytest.raises(CheckpointError, match=r"weight\s+.*\(1, 2\).*"):
        Parent(child, optimizer=SGD(lr=1.0)).setup_training()


def test_the_device_is_that_of_the_parameters_after_a_move():
    algorithm = Child(optimizer=SGD(lr=0.1))
    assert algorithm.device == torch.device("cpu")
    algorithm.to("meta")
    assert algorithm.device == torch.device("meta")
