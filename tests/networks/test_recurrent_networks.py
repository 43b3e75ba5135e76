import functools

import pytest
import torch
from torch import nn

from alf_lite import nest
from alf_lite.networks.network import whole_sequences
from alf_lite.networks.recurrent_networks import (
    GRUEncodingNetwork,
    LSTMEncodingNetwork,
)
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

SPEC = {"a": TensorSpec((3,)), "b": BoundedTensorSpec((), torch.int64, 0, 2)}
BOTH = pytest.mark.parametrize("cls", [LSTMEncodingNetwork, GRUEncodingNetwork])


def inputs(num_steps, batch_size):
    return nest.map_structure(lambda spec: spec.sample((num_steps, batch_size)), SPEC)


def unroll(network, xs, state):
    """[T, B, ...] → outputs [T, B, n] and the last state."""
    outputs = []
    for t in range(nest.batch_size(xs)):
        x = nest.map_structure(lambda leaf, t=t: leaf[t], xs)
        output, state = network(x, state)
        outputs.append(output)
    return torch.stack(outputs), state


@BOTH
def test_state_has_the_structure_of_its_spec(cls):
    network = cls(SPEC, hidden_size=(8, 6), post_fc_layer_params=(4,))
    state = network.initial_state(5)
    assert all((leaf == 0).all() for leaf in nest.flatten(state))
    nest.assert_same_structure(state, network.state_spec)
    output, new_state = network(
        nest.map_structure(lambda s: s.sample((5,)), SPEC), state
    )
    assert output.shape == (5, network.output_size) == (5, 4)
    nest.assert_same_structure(new_state, network.state_spec)
    assert nest.extract_spec(new_state) == network.state_spec
    assert len(new_state) == 2
    assert len(new_state[0]) == (2 if cls is LSTMEncodingNetwork else 1)


@pytest.mark.parametrize(
    ("cls", "kind"),
    [(LSTMEncodingNetwork, torch.nn.LSTM), (GRUEncodingNetwork, torch.nn.GRU)],
)
def test_cells_equal_torchs_network_of_several_layers(cls, kind):
    torch.manual_seed(0)
    network = cls(TensorSpec((3,)), hidden_size=(5, 5), fc_layer_params=())
    reference = kind(3, 5, num_layers=2)
    for i, cell in enumerate(network._cells):
        for name, parameter in cell.named_parameters():
            getattr(reference, f"{name}_l{i}").data.copy_(parameter)
    xs = torch.randn(7, 4, 3)
    outputs, state = unroll(network, xs, network.initial_state(4))
    expected, after = reference(xs)
    torch.testing.assert_close(outputs, expected)
    after = after if isinstance(after, tuple) else (after,)
    stacked = tuple(map(torch.stack, zip(*state, strict=True)))
    torch.testing.assert_close(stacked, after)


@BOTH
def test_reset_rows_behave_exactly_like_a_new_episode(cls):
    torch.manual_seed(0)
    network = cls(SPEC, hidden_size=(8,))
    first, second = inputs(4, 2), inputs(3, 2)
    _, state = unroll(network, first, network.initial_state(2))
    state = nest.map_structure(
        lambda s: torch.where(torch.tensor([[True], [False]]), 0.0, s), state
    )
    continued, _ = unroll(network, second, state)
    fresh, _ = unroll(network, second, network.initial_state(2))
    assert torch.equal(continued[:, 0], fresh[:, 0])
    assert not torch.allclose(continued[:, 1], fresh[:, 1])


@BOTH
def test_gradient_reaches_the_first_step_and_every_parameter(cls):
    torch.manual_seed(0)
    network = cls(SPEC, hidden_size=(8, 8), post_fc_layer_params=(4,))
    xs = inputs(3, 2)
    xs["a"].requires_grad_()
    outputs, _ = unroll(network, xs, network.initial_state(2))
    outputs[-1].sum().backward()
    assert (xs["a"].grad[0] != 0).any()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name


class Amplified(nn.GRUCell):
    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.gain = nn.Parameter(torch.tensor(2.0))

    def forward(self, x, state):
        return self.gain * super().forward(x, state)


class OfOwnCells(GRUEncodingNetwork):
    _cell_type = Amplified


def with_hook(**kwargs):
    network = LSTMEncodingNetwork(SPEC, **kwargs)
    network._cells[1].register_forward_hook(lambda m, i, o: (3 * o[0], o[1]))
    return network


def without_biases(**kwargs):
    network = LSTMEncodingNetwork(SPEC, **kwargs)
    network._cells[0] = nn.LSTMCell(network._cells[0].input_size, 8, bias=False)
    return network


@pytest.mark.parametrize(
    "make", [with_hook, without_biases, functools.partial(OfOwnCells, SPEC)]
)
def test_whole_sequences_go_through_the_cells_as_they_are(make):
    torch.manual_seed(0)
    network = make(hidden_size=(8, 6))
    xs, state = inputs(6, 2), network.initial_state(2)
    is_first = torch.zeros(6, 2, dtype=torch.bool)
    is_first[3] = True
    expected = [
        unroll(network, nest.narrow(xs, begin, begin + 3), state) for begin in (0, 3)
    ]
    parameters = list(network.parameters())
    flat = nest.map_structure(lambda leaf: leaf.flatten(0, 1), xs)
    with whole_sequences(is_first):
        output, state = network(flat, state)
    steps = torch.cat([steps for steps, _ in expected])
    torch.testing.assert_close(output.unflatten(0, (6, 2)), steps)
    torch.testing.assert_close(nest.flatten(state), nest.flatten(expected[1][1]))
    torch.testing.assert_close(
        torch.autograd.grad(output.square().sum(), parameters),
        torch.autograd.grad(steps.square().sum(), parameters),
    )


def test_recurrent_weights_start_orthogonal_and_the_forget_gate_open():
    network = LSTMEncodingNetwork(TensorSpec((3,)), hidden_size=(6,))
    cell = network._cells[0]
    for gate in cell.weight_hh.split(6):
        torch.testing.assert_close(gate @ gate.T, torch.eye(6), atol=1e-5, rtol=0)
    bias = cell.bias_ih + cell.bias_hh
    assert bias.tolist() == [0.0] * 6 + [1.0] * 6 + [0.0] * 12


@BOTH
def test_missing_state_is_refused(cls):
    network = cls(SPEC)
    x = nest.map_structure(lambda s: s.sample((2,)), SPEC)
    with pytest.raises(ValueError, match=r"state: expected .* 1 cells.*initial_state"):
        network(x)


@BOTH
def test_a_network_without_cells_is_refused(cls):
    with pytest.raises(ValueError, match="hidden_size: expected at least one cell"):
        cls(SPEC, hidden_size=())
