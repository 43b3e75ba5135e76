from __future__ import annotations

import functools
import math

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.environments.creation import create_environment
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.network import whole_sequences
from alf_lite.networks.transformer_networks import (
    GTrXLEncodingNetwork,
    TransformerState,
    _RelativeAttention,
    _Window,
)
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import TensorSpec
from alf_lite.testing.structured_environments import MemoryEnv

VECTOR = TensorSpec((3,))


def make(**options):
    torch.manual_seed(0)
    arguments = {"size": 8, "num_heads": 2, "feed_forward_size": 12, **options}
    return GTrXLEncodingNetwork(VECTOR, **arguments)


def step_by_step(network, xs, is_first, state):
    outputs = []
    for x, first in zip(xs, is_first, strict=True):
        state = nest.map_structure(
            lambda s, first=first: torch.where(
                first.view(-1, *[1] * (s.ndim - 1)), 0.0, s
            ),
            state,
        )
        output, state = network(x, state)
        outputs.append(output)
    return torch.cat(outputs), state


@pytest.mark.parametrize("num_steps", [1, 3, 9])
@pytest.mark.parametrize("gate", ["gru", "residual"])
def test_whole_sequences_equal_one_step_after_the_other(num_steps, gate):
    network = make(memory_size=4, num_layers=2, gate=gate, post_fc_layer_params=(5,))
    state = network.initial_state(6)
    # Some rows are in the middle of an episode.
    before = torch.randn(5, 6, 3)
    is_first = torch.rand(5, 6) < 0.4
    _, state = step_by_step(network, before, is_first, state)
    xs = torch.randn(num_steps, 6, 3)
    is_first = torch.rand(num_steps, 6) < 0.3
    is_first[0, 0] = True
    results = []
    for at_once in (False, True):
        leaves = [s.detach().requires_grad_() for s in nest.flatten(state)[:-1]]
        own = TransformerState(tuple(leaves), state.is_valid)
        if at_once:
            with whole_sequences(is_first):
                output, after = network(xs.flatten(0, 1), own)
        else:
            output, after = step_by_step(network, xs, is_first, own)
        loss = output.square().sum() + sum(m.sum() for m in after.memories)
        wanted = [*network.parameters(), *leaves]
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
        results.append([output, *nest.flatten(after), *gradients])
    assert results[0][0].shape == (num_steps * 6, network.output_size)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_attention_is_that_of_a_naive_loop():
    torch.manual_seed(0)
    size, memory_size, num_steps = 6, 3, 4
    attention = _RelativeAttention(size, memory_size, num_heads=2)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    seen = torch.randn(memory_size + num_steps, 1, size)
    is_valid = torch.tensor([[0.0, 1.0, 1.0]])
    is_first = torch.tensor([[False], [False], [True], [False]])
    window = _Window(is_valid, num_steps, is_first)
    found = attention(seen, window)
    u, v = attention._content_bias, attention._distance_bias
    visible = {0: [1, 2, 3], 1: [1, 2, 3, 4], 2: [5], 3: [5, 6]}
    for t, js in visible.items():
        i, heads = t + memory_size, []
        query = attention._query(seen[i, 0]).view(2, 3)
        for head in range(2):
            logits, values = [], []
            for j in js:
                both = attention._key_and_value(seen[j, 0])
                key, value = (part.view(2, 3)[head] for part in both.split(size))
                r = attention._distance[i - j, head]
                content = (query[head] + u[head]) @ key
                by_distance = (query[head] + v[head]) @ r
                logits.append((content + by_distance) / math.sqrt(3))
                values.append(value)
            weights = torch.stack(logits).softmax(0)
            heads.append(weights @ torch.stack(values))
        torch.testing.assert_close(found[t, 0], attention._output(torch.cat(heads)))
    assert window.is_valid.T.tolist() == [[0.0, 1.0, 1.0]]  # after them


def test_the_past_is_seen_as_far_as_the_memories_of_all_layers_reach():
    network = make(memory_size=2, num_layers=2)
    xs = torch.randn(8, 1, 3, requires_grad=True)
    with whole_sequences(torch.zeros(8, 1, dtype=torch.bool)):
        output, state = network(xs.flatten(0, 1), network.initial_state(1))
    output[-1].sum().backward()
    reached = xs.grad.abs().sum((1, 2)) > 0
    assert reached.tolist() == [False] * 3 + [True] * 5
    assert nest.extract_spec(state) == network.state_spec
    nest.assert_same_structure(state, network.state_spec)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="num_heads: expected a divisor of size 8"):
        make(num_heads=3)
    with pytest.raises(ValueError, match=r"gate must be one of .*'lstm'"):
        make(gate="lstm")
    with pytest.raises(ValueError, match="memory_size must be a positive integer"):
        make(memory_size=0)


@pytest.mark.ci
def test_it_remembers_what_a_feed_forward_network_cannot():
    torch.manual_seed(0)
    env = create_environment(env_ctor=MemoryEnv, num_parallel_environments=16, seed=0)
    memory = functools.partial(
        GTrXLEncodingNetwork, size=32, memory_size=4, feed_forward_size=32
    )
    algorithm = PPOAlgorithm(
        env.observation_spec,
        env.action_spec,
        env=env,
        config=TrainerConfig(
            num_iterations=60,
            unroll_length=12,
            num_updates_per_train_iter=4,
            mini_batch_length=6,
            mini_batch_size=16,
        ),
        optimizer=Adam(lr=3e-3, gradient_clipping=1.0),
        entropy_regularization=0.01,
        actor_network_ctor=functools.partial(
            ActorDistributionNetwork, encoding_network_ctor=memory
        ),
        value_network_ctor=functools.partial(
            ValueNetwork, encoding_network_ctor=memory
        ),
    )
    returns = []
    for _ in range(60):
        algorithm.train_iter()
        returns.append(algorithm.metrics.results()["AverageReturn"])
        if returns[-1] > 0.8:
            break
    assert returns[-1] > 0.8  # without memory no policy expects more than 0
