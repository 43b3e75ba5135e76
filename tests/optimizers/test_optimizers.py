"""Our optimizers make torch's steps, clipped and with the scheduled learning rate."""

from __future__ import annotations

import copy
import io
import itertools
import math

import gin
import pytest
import torch
from torch import nn
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook

from alf_lite.config.files import parse_config
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.optimizers import optimizer as optimizer_module
from alf_lite.optimizers.optimizers import SGD, Adam, AdamW, RMSprop
from alf_lite.utils.progress import Progress
from alf_lite.utils.schedulers import LinearScheduler

# (ours, torch's, hyperparameters of both)
KINDS = [
    (Adam, torch.optim.Adam, {"betas": (0.8, 0.99), "eps": 1e-5}),
    (Adam, torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
    (AdamW, torch.optim.AdamW, {"weight_decay": 0.1}),
    (SGD, torch.optim.SGD, {}),
    (SGD, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (RMSprop, torch.optim.RMSprop, {"alpha": 0.9, "momentum": 0.5, "centered": True}),
    (RMSprop, torch.optim.RMSprop, {}),
]
IDS = [f"{ours.__name__}-{'-'.join(kwargs)}" for ours, _, kwargs in KINDS]


def make_network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def set_up(optimizer, network):
    optimizer.setup(list(network.named_parameters()))
    return optimizer


def loss_of(network, step):
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
    return 10 * network(inputs).square().mean()


def train(network, optimizer, steps, clip=None):
    for step in steps:
        optimizer.zero_grad()
        loss_of(network, step).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimizer.step()


def assert_equal_parameters(a, b):
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("ours", "reference", "kwargs"), KINDS, ids=IDS)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_steps_equal_those_of_plain_torch(ours, reference, kwargs, clip):
    network, expected = make_network(), make_network()
    optimizer = set_up(ours(0.01, gradient_clipping=clip, **kwargs), network)
    train(network, optimizer, range(5))
    train(expected, reference(expected.parameters(), lr=0.01, **kwargs), range(5), clip)
    assert_equal_parameters(network, expected)


@pytest.mark.parametrize(
    ("ours", "reference", "kwargs"),
    [
        (AdamW, torch.optim.AdamW, {}),
        (Adam, torch.optim.Adam, {"amsgrad": True}),
    ],
)
def test_missing_gradients_change_nothing_and_cost_no_speed(
    monkeypatch, ours, reference, kwargs
):
    network, expected = make_network(), make_network()
    optimizer = set_up(ours(0.01, **kwargs), network)
    theirs = reference(expected.parameters(), lr=0.01, fused=True, **kwargs)
    missing = {2: ["2.bias"], 3: ["0.weight", "0.bias"], 5: ["0.weight", "0.bias"]}
    missing[6] = ["0.weight", "0.bias", "2.weight", "2.bias"]
    slow_steps = []
    of_torch = optimizer._torch_optimizer
    slow_step = type(of_torch).step

    def noted(its_optimizer):
        if its_optimizer is of_torch:
            slow_steps.append(step)
        return slow_step(its_optimizer)

    # Of the class: another method of the object alone is no shipped one.
    monkeypatch.setattr(type(of_torch), "step", noted)
    for step in range(9):
        for model, its_optimizer in ((network, optimizer), (expected, theirs)):
            its_optimizer.zero_grad()
            loss_of(model, step).backward()
            for name in missing.get(step, ()):
                model.get_parameter(name).grad = None
            its_optimizer.step()
        if step == 4:  # between two updates that leave something out
            saved = optimizer.state_dict()
            optimizer.load_state_dict(copy.deepcopy(saved))
    assert slow_steps == []
    for name, parameter in expected.named_parameters():
        assert torch.equal(network.get_parameter(name), parameter)
        state = optimizer.state_dict()["state"][name]
        assert state["step"] == theirs.state[parameter]["step"]


@pytest.mark.parametrize(("ours", "reference", "kwargs"), KINDS, ids=IDS)
def test_of_some_parameters_it_may_begin_anew(ours, reference, kwargs):
    network, expected = make_network(), make_network()
    optimizer = set_up(ours(0.01, **kwargs), network)
    # Each of theirs has what shall be forgotten together.
    theirs = [reference(layer.parameters(), lr=0.01, **kwargs)
              for layer in (expected[0], expected[2])]  # fmt: skip
    for step in range(9):
        network.zero_grad()
        expected.zero_grad()
        loss_of(network, step).backward()
        loss_of(expected, step).backward()
        optimizer.apply_gradients()
        for its_optimizer in theirs:
            its_optimizer.step()
        if step in (1, 4, 5):
            beginnings = optimizer.num_beginnings
            optimizer.forget(set(make_network().parameters()))  # of another
            assert optimizer.num_beginnings == beginnings
            optimizer.forget(set(network[2].parameters()))
            assert optimizer.num_beginnings == beginnings + 1
            theirs[1].state.clear()
    assert_equal_parameters(network, expected)
    if ours is Adam:
        steps = [float(s["step"]) for s in optimizer.state_dict()["state"].values()]
        assert steps == [9, 9, 3, 3]


@pytest.mark.parametrize(("ours", "reference", "kwargs"), KINDS, ids=IDS)
def test_a_skipped_step_leaves_nothing_after_a_new_beginning(ours, reference, kwargs):
    network, expected = make_network(), make_network()
    for model, skips in ((network, True), (expected, False)):
        optimizer = set_up(ours(0.01, **kwargs), model)
        train(model, optimizer, range(3))
        optimizer.forget(set(model[0].parameters()))
        if skips:
            (1e3 * loss_of(model, 3)).backward()
            optimizer.apply_gradients(torch.ones(()))
        train(model, optimizer, range(4, 6))
    assert_equal_parameters(network, expected)


def test_hooks_of_torch_see_every_step():
    network = make_network()
    optimizer = set_up(Adam(0.01), network)
    seen = []
    inner = optimizer._torch_optimizer
    after = inner.register_step_post_hook(lambda o, *_: seen.append(("after", o)))
    train(network, optimizer, range(3))
    assert seen == [("after", inner)] * 3
    after.remove()
    seen.clear()
    before = inner.register_step_pre_hook(lambda o, *_: seen.append(("before", o)))
    train(network, optimizer, range(2))
    assert seen == [("before", inner)] * 2
    before.remove()
    handle = register_optimizer_step_post_hook(lambda o, *_: seen.append(("global", o)))
    train(network, optimizer, range(2))
    handle.remove()
    assert seen[2:] == [("global", inner)] * 2


def test_fused_where_torch_has_it_else_foreach():
    for ours, implementation in [
        (Adam, "fused"),
        (AdamW, "fused"),
        (SGD, "fused"),
        (RMSprop, "foreach"),
    ]:
        optimizer = set_up(ours(), make_network())
        assert optimizer._torch_optimizer.param_groups[0][implementation] is True


def test_parameters_that_cannot_be_fused_still_train():
    parameter = Parameter(torch.ones(2, dtype=torch.complex64))
    optimizer = Adam(0.1)
    optimizer.setup([("p", parameter)])
    parameter.grad = torch.ones(2, dtype=torch.complex64)
    optimizer.step()
    torch.testing.assert_close(parameter.real.detach(), torch.full((2,), 0.9))


@pytest.mark.parametrize(("clipping", "scale"), [(0.5, 0.1), (10.0, 1.0)])
def test_returns_the_norm_before_clipping_and_clips_all_gradients_together(
    clipping, scale
):
    a, b = Parameter(torch.zeros(2)), Parameter(torch.zeros(1))
    optimizer = SGD(lr=1.0, gradient_clipping=clipping)
    optimizer.setup([("a", a), ("b", b)])
    a.grad, b.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    norm = optimizer.step()
    assert norm.shape == ()
    assert norm.item() == pytest.approx(5.0)
    torch.testing.assert_close(a.detach(), torch.tensor([-3.0, 0.0]) * scale)
    torch.testing.assert_close(b.detach(), torch.tensor([-4.0]) * scale)


@pytest.mark.parametrize("has_kernel", [True, False])
@pytest.mark.parametrize("bad", [0.0, math.inf, -math.inf, math.nan])
def test_gradients_that_are_not_finite_are_marked_without_a_norm(
    monkeypatch, has_kernel, bad
):
    if not has_kernel:
        monkeypatch.setattr(optimizer_module, "_find_non_finite", None)
    network = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1), nn.Linear(1, 1))
    optimizer = Adam()
    optimizer.setup(list(network.named_parameters()))
    network[:2](torch.ones(4, 3)).sum().backward()  # the last one has no gradient
    network[1].weight.grad[0, 1] += bad
    before = [p.grad.clone() for p in network[:2].parameters()]
    mark = torch.zeros(())
    optimizer.mark_non_finite(mark)
    assert (mark.item() != 0) == (bad != 0)
    after = [p.grad for p in network[:2].parameters()]
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
    assert not optimizer.clips_gradients


def test_bad_gradients_show_in_the_norm_before_they_are_applied():
    parameter = Parameter(torch.ones(2))
    optimizer = Adam(gradient_clipping=1.0)
    optimizer.setup([("p", parameter)])
    parameter.grad = torch.tensor([math.inf, 1.0])
    assert math.isinf(optimizer.clip_gradients().item())
    assert parameter.tolist() == [1.0, 1.0]


def test_learning_rate_follows_its_scheduler_at_every_step():
    parameter = Parameter(torch.zeros(1))
    optimizer = SGD(lr=LinearScheduler([(0, 1.0), (10, 0.0)], "iterations"))
    optimizer.setup([("p", parameter)])
    with pytest.raises(RuntimeError, match="follows the progress of no run yet"):
        _ = optimizer.learning_rate
    progress = Progress()
    optimizer.follow(progress)
    for iteration, expected in [(0, -1.0), (5, -1.5), (10, -1.5), (0, -2.5)]:
        progress.iterations = iteration
        parameter.grad = torch.ones(1)
        optimizer.step()
        assert parameter.item() == pytest.approx(expected)


def test_learning_rate_may_be_a_tensor_or_a_function():
    assert Adam(torch.tensor(0.25)).learning_rate == 0.25
    assert Adam(lambda: torch.tensor(0.5)).learning_rate == 0.5


def test_parameters_without_gradient_stay():
    network = make_network()
    optimizer = set_up(Adam(0.1, gradient_clipping=1.0, weight_decay=0.1), network)
    before = [p.detach().clone() for p in network.parameters()]
    network[2].bias.grad = torch.ones(2)
    assert optimizer.step().item() == pytest.approx(math.sqrt(2))
    changed = [
        not torch.equal(p, q) for p, q in zip(network.parameters(), before, strict=True)
    ]
    assert changed == [False, False, False, True]
    optimizer.zero_grad()
    assert all(p.grad is None for p in network.parameters())


@pytest.mark.parametrize("ours", [Adam, AdamW, SGD, RMSprop])
def test_no_gradients_and_no_parameters_are_fine(ours):
    for network in (make_network(), nn.Identity()):
        optimizer = set_up(ours(gradient_clipping=1.0), network)
        assert optimizer.step().item() == 0
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
        assert len(optimizer.state_dict()["state"]) == len(optimizer.parameters)


@pytest.mark.parametrize(("ours", "_reference", "kwargs"), KINDS, ids=IDS)
def test_saved_and_loaded_training_continues_bit_for_bit(ours, _reference, kwargs):
    network, resumed = make_network(), make_network(seed=1)
    optimizer = set_up(ours(0.01, **kwargs), network)
    train(network, optimizer, range(3))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(network.state_dict())
    other = set_up(ours(0.01, **kwargs), resumed)
    other.load_state_dict(torch.load(file, weights_only=True))
    for n, o in ((network, optimizer), (resumed, other)):
        train(n, o, range(3, 6))
    for p, q in zip(network.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(p, q)


def test_loaded_state_is_a_copy():
    network = make_network()
    optimizer = set_up(Adam(), network)
    train(network, optimizer, range(2))
    state = optimizer.state_dict()
    other = set_up(Adam(), make_network())
    other.load_state_dict(state)
    before = state["state"]["0.weight"]["exp_avg"].clone()
    other.parameters[0].grad = torch.ones(4, 3)
    other.step()
    assert torch.equal(state["state"]["0.weight"]["exp_avg"], before)


def test_state_is_by_name_whatever_the_order_of_parameters():
    network = make_network()
    optimizer = set_up(Adam(), network)
    train(network, optimizer, range(2))
    other = Adam()
    other.setup(list(reversed(list(network.named_parameters()))))
    other.load_state_dict(optimizer.state_dict())
    for name in ("0.weight", "2.bias"):
        assert torch.equal(
            other.state_dict()["state"][name]["exp_avg_sq"],
            optimizer.state_dict()["state"][name]["exp_avg_sq"],
        )


def test_hyperparameters_come_from_the_constructor_not_from_the_state():
    network = make_network()
    optimizer = set_up(SGD(0.5, momentum=0.9), network)
    train(network, optimizer, range(2))
    other = set_up(SGD(0.25, momentum=0.1), make_network())
    other.load_state_dict(optimizer.state_dict())
    network[2].bias.grad = torch.ones(2)
    other.step()
    group = other._torch_optimizer.param_groups[0]
    assert (group["lr"], group["momentum"]) == (0.25, 0.1)


def bad_states():
    network = make_network()
    optimizer = set_up(Adam(), network)
    train(network, optimizer, range(1))
    good = optimizer.state_dict()

    def change(name, **entries):
        state = {**good["state"], name: {**good["state"][name], **entries}}
        return {**good, "state": state}

    without = {k: v for k, v in good["state"].items() if k != "2.bias"}
    return [
        ({**good, "optimizer": "SGD"}, "an optimizer Adam, got that of 'SGD'"),
        ({}, "got that of None"),
        ({**good, "state": [1]}, "expected the state of an optimizer Adam"),
        ({**good, "state": without}, r"Missing: \['2.bias'\], unknown: \[\]"),
        (
            {**good, "state": {**good["state"], "x": {}}},
            r"Missing: \[\], unknown: \['x'\]",
        ),
        (change("0.bias", exp_avg=torch.zeros(5)), r"exp_avg of 0.bias .*\[4\].*\[5\]"),
        (change("0.bias", step=torch.zeros(4)), r"step of 0.bias .*\[\].*\[4\]"),
        (change("0.bias", exp_avg=[0.0] * 4), "got a list"),
        (change("0.bias", max_exp_avg_sq=torch.zeros(4)), "hyperparameters changed"),
    ]


@pytest.mark.parametrize("i", range(9))
def test_state_that_does_not_fit_is_refused_as_a_whole(i):
    state, message = bad_states()[i]
    network = make_network()
    optimizer = set_up(Adam(), network)
    train(network, optimizer, range(2))
    before = optimizer.state_dict()["state"]["0.weight"]["exp_avg"].clone()
    with pytest.raises(CheckpointError, match=message):
        optimizer.load_state_dict(state)
    after = optimizer.state_dict()["state"]["0.weight"]["exp_avg"]
    assert torch.equal(before, after)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adam(-1e-3), "Adam: the learning rate must be at least 0, got -0.001"),
        (lambda: Adam(math.nan), "got nan"),
        (lambda: Adam(((0.0, 0.1), (1.0, -0.2))), r"at least 0, got -0\.2"),
        (lambda: Adam(gradient_clipping=0.0), "gradient_clipping must be .* got 0.0"),
        (lambda: SGD(gradient_clipping=math.inf), "SGD: gradient_clipping"),
        (lambda: Adam(betas=(0.9, 1.5)), "beta"),
        (lambda: RMSprop(eps=-1.0), "epsilon"),
        (lambda: SGD(momentum=-1.0), "momentum"),
    ],
)
def test_bad_hyperparameters_fail_where_they_are_given(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("lr", ["1e-3", None, LinearScheduler])
def test_learning_rate_of_a_wrong_type_is_an_error(lr):
    with pytest.raises(TypeError, match="expected a number or a scheduler"):
        Adam(lr)


def test_negative_scheduled_learning_rate_stops_before_the_step():
    parameter = Parameter(torch.ones(1))
    rates = itertools.chain([0.1] * 4, itertools.repeat(-0.1))
    optimizer = SGD(lambda: next(rates))
    optimizer.setup([("p", parameter)])
    parameter.grad = torch.ones(1)
    with pytest.raises(ValueError, match=r"at least 0, got -0\.1"):
        for _ in range(9):
            optimizer.step()
    assert parameter.item() < 1


def test_set_up_twice_is_an_error():
    optimizer = set_up(Adam(), make_network())
    with pytest.raises(ValueError, match=r"trains 4 parameters already.*0\.weight"):
        set_up(optimizer, make_network())


def test_the_same_parameter_or_name_twice_is_an_error():
    p, q = Parameter(torch.zeros(1)), Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match=r"same parameter is given twice: \['b'\]"):
        Adam().setup([("a", p), ("b", p)])
    with pytest.raises(ValueError, match=r"same name is given twice: \['a'\]"):
        Adam().setup([("a", p), ("a", q)])


def test_step_before_setup_says_what_is_missing():
    with pytest.raises(RuntimeError, match=r"call setup\(\) first"):
        Adam().step()


def test_confs_configure_optimizers():
    try:
        parse_config(
            None,
            [
                "Adam.lr = @LinearScheduler()",
                "Adam.gradient_clipping = 0.5",
                "LinearScheduler.schedule = [(0, 3e-4), (1, 0.0)]",
            ],
        )
        optimizer, progress = Adam(), Progress()
        optimizer.follow(progress)
        progress.percent = 0.5
        assert optimizer.learning_rate == pytest.approx(1.5e-4)
        assert "gradient_clipping=0.5" in repr(optimizer)
    finally:
        gin.clear_config()


@pytest.mark.gpu
def test_training_on_a_gpu_equals_the_cpu():
    cpu, gpu = make_network(), make_network().cuda()
    ours = set_up(Adam(0.01, gradient_clipping=0.5), gpu)
    expected = set_up(Adam(0.01, gradient_clipping=0.5), cpu)
    for step in range(3):
        for network, optimizer in ((cpu, expected), (gpu, ours)):
            optimizer.zero_grad()
            device = next(network.parameters()).device
            inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
            network(inputs.to(device)).square().mean().backward()
            optimizer.step()
    assert_equal_parameters(gpu.cpu(), cpu)


# Options of some parameters

OPTIONS = {"*bias": {"weight_decay": 0.0, "lr_factor": 2.0}, "0.*": {"lr_factor": 0.0}}


@pytest.mark.parametrize("ours", [Adam, AdamW, SGD, RMSprop])
def test_options_of_parameters_are_those_of_optimizers_of_their_own(ours):
    """The biases of all layers, the weights of the first one, and the others."""
    network, expected = make_network(), make_network()
    schedule, twice = (
        LinearScheduler([(0, lr), (10, lr / 10)], "iterations") for lr in (0.1, 0.2)
    )
    optimizer = set_up(
        ours(schedule, weight_decay=0.1, parameter_options=OPTIONS), network
    )
    names = ("0.bias", "2.bias")
    biases = set_up_some(ours(twice, weight_decay=0.0), expected, names)
    others = set_up_some(ours(schedule, weight_decay=0.1), expected, ("2.weight",))
    progress = Progress()
    for each in (optimizer, biases, others):
        each.follow(progress)
    for step in range(5):
        progress.iterations = 2 * step
        for each in (optimizer, biases, others):
            each.zero_grad()
        for each in (network, expected):
            loss_of(each, step).backward()
        for each in (optimizer, biases, others):
            each.step()
    torch.testing.assert_close(network.state_dict(), expected.state_dict())
    assert torch.equal(network[0].weight, make_network()[0].weight)


def set_up_some(optimizer, network, names):
    optimizer.setup([(n, p) for n, p in network.named_parameters() if n in names])
    return optimizer


@pytest.mark.parametrize("options", [OPTIONS, {"*": {"lr_factor": 0.5}}])
def test_the_state_of_an_optimizer_with_options_is_restored(options):
    optimizers, networks = [], []
    for num_steps in (4, 2):
        networks.append(make_network())
        optimizers.append(set_up(Adam(0.1, parameter_options=options), networks[-1]))
        train(networks[-1], optimizers[-1], range(num_steps))
    networks.append(copy.deepcopy(networks[1]))
    resumed = set_up(Adam(0.1, parameter_options=options), networks[-1])
    resumed.load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
    train(networks[-1], resumed, range(2, 4))
    torch.testing.assert_close(networks[-1].state_dict(), networks[0].state_dict())
    again = Adam(**resumed.arguments())
    assert again.arguments() == resumed.arguments()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"*bias": {"decay": 0.1}}, "expected values of some of .*'weight_decay'"),
        ({"*bias": {}}, "expected values of some of"),
        ({"*bias": 0.1}, r"\['\*bias'\]: expected values of some of"),
        ({"*bias": {"lr_factor": -1.0}}, "lr_factor must be at least 0, got -1.0"),
        ({"*bias": {"weight_decay": -1.0}}, "Invalid weight_decay value: -1.0"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Adam(parameter_options=options)


def test_a_pattern_that_counts_for_nothing_is_refused():
    for patterns in (("*gain",), ("*", "*bias")):
        options = {pattern: {"lr_factor": 0.5} for pattern in patterns}
        with pytest.raises(ConfigError, match="fits no parameter that is left: it tra"):
            set_up(Adam(parameter_options=options), make_network())


def test_dampening_without_momentum_is_refused():
    with pytest.raises(ConfigError, match="dampening has no effect: momentum is 0"):
        SGD(dampening=0.5)
    SGD(dampening=0.5, momentum=0.9)
    SGD(dampening=0.5, parameter_options={"*weight": {"momentum": 0.9}})
