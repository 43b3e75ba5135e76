"""What the loss of an algorithm must be: one runner for all of them.

A row of the table in loss_table.py is an algorithm, and its loss of one step as the
paper writes it: a function of a window of stored steps, of t and of the row b. For all
combinations of actions, mask, dimensions of the reward, memory and n that the algorithm
supports, the runner builds it with small networks, makes windows in which episodes go
on, terminate and hit time limits, and compares the loss of each step, its parts, the
gradient of all parameters and the priorities.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.learning.batch_loss import LossFunction, aggregate_loss
from alf_lite.algorithms.learning.training_batches import TrainingBatch, time_major
from alf_lite.algorithms.rl_algorithm import RLAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, Experience, StepType, TimeStep
from alf_lite.networks.actor_networks import (
    ActorDistributionNetwork,
    ActorNetwork,
    NormalActorNetwork,
    SquashedActorNetwork,
)
from alf_lite.networks.critic_networks import CriticNetwork
from alf_lite.networks.recurrent_networks import GRUEncodingNetwork
from alf_lite.networks.value_networks import QNetwork, ValueNetwork
from alf_lite.optimizers.optimizers import Adam
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.utils.tensor_utils import expand_dims_as, reset_state
from tests.replayed_steps import BOX, CHOICE, MIXED, NO_SOURCE, OBSERVATION

GAMMA = 0.9
WEIGHTS = [1.0, -2.0]  # of a reward of two dimensions
ACTIONS = {
    "box": BOX,
    "choice": CHOICE,
    "pair": BoundedTensorSpec((2,), torch.int64, [1, 5], [2, 7]),  # 0 is no action
    "mixed": MIXED,
}
# How many values the components of the discrete part have.
SIZES = {"box": [], "choice": [3], "pair": [2, 3], "mixed": [3]}
DISCRETE = tuple(kind for kind, sizes in SIZES.items() if sizes)

F, M, L = StepType.FIRST, StepType.MID, StepType.LAST
STEP_TYPES = [
    [F, M, M, M, M],
    [M, M, L, F, M],  # terminates
    [M, M, L, F, M],  # hits a time limit
    [L, F, M, M, M],  # begins with an end
    [M, L, F, L, F],  # hits a limit, and terminates
]
TERMINATIONS = [(1, 2), (4, 3)]
B, T = len(STEP_TYPES), len(STEP_TYPES[0])
# Every other row comes from an offline buffer.
SOURCE = BatchInfo(source=torch.arange(B) % 2)
# The mask rules out what was done here.
RULED_OUT = (0, 1)

_SIZES = {"fc_layer_params": (16,)}
NETWORKS: dict[str, Callable[..., Any]] = {
    "squashed": functools.partial(SquashedActorNetwork, **_SIZES),
    "normal": functools.partial(NormalActorNetwork, **_SIZES),
    "deterministic": functools.partial(ActorNetwork, **_SIZES),
    "distribution": functools.partial(ActorDistributionNetwork, **_SIZES),
    "critic": functools.partial(CriticNetwork, joint_fc_layer_params=(16,)),
    "q": functools.partial(QNetwork, **_SIZES),
    "value": functools.partial(ValueNetwork, **_SIZES),
}
_MEMORY_SIZE = (8,)
MEMORY = functools.partial(GRUEncodingNetwork, hidden_size=_MEMORY_SIZE)


# Options that are refused where no part of the action is continuous
OF_CONTINUOUS = {"action_margin", "num_sampled_actions"}


class Terms(NamedTuple):
    """What the equations say of one step."""

    loss: Tensor  # []
    parts: dict[str, Tensor]  # [] each, as ``LossInfo.extra`` names them
    td_error: Tensor | None = None  # [] |δ|; None: it is on-policy


class Case(NamedTuple):
    """One combination."""

    action: str  # of ACTIONS
    masked: bool
    dims: int  # of the reward
    memory: bool
    n: int

    @property
    def num_extras(self) -> int:
        """How much of it is not the plainest there is."""
        return sum([self.masked, self.dims > 1, self.memory, self.n > 1])

    def __str__(self) -> str:
        words = [self.action, *["masked"] * self.masked]
        words += ["two rewards"] * (self.dims > 1) + ["memory"] * self.memory
        return ", ".join([*words, f"n={self.n}"])


class Row(NamedTuple):
    """An algorithm, its loss, and what it supports."""

    algorithm: type[RLAlgorithm]
    loss: Callable[[Window, int, int], Terms]
    networks: dict[str, str]  # parameter -> name in NETWORKS
    options: dict[str, Any] = {}  # noqa: RUF012 - read only
    actions: tuple[str, ...] = tuple(ACTIONS)
    masked: bool = True
    dims: tuple[int, ...] = (1, 2)
    memory: tuple[bool, ...] = (False, True)
    n: tuple[int, ...] = (1, 3)
    lookahead: int = 0  # steps at the end that are not trained, besides n

    def cases(self, *masked: bool) -> Iterator[Case]:
        """All combinations that are supported, without a mask or with one."""
        for case in itertools.product(
            self.actions, masked, self.dims, self.memory, self.n
        ):
            if case[0] in DISCRETE or not case[1]:
                yield Case(*case)

    def refused(self) -> Iterator[Case]:
        """What is not supported, each beside what is."""
        usual = next(self.cases(False))
        for action in set(ACTIONS) - set(self.actions):
            yield usual._replace(action=action)
        if not self.masked:
            yield usual._replace(masked=True)
        for memory in {False, True} - set(self.memory):
            yield usual._replace(memory=memory)

    def build(self, case: Case, **more: Any) -> RLAlgorithm:
        """With random parameters, so that no two networks agree."""
        encoder = {"encoding_network_ctor": MEMORY} if case.memory else {}
        arguments = {
            **self.options,
            **{
                parameter: functools.partial(NETWORKS[name], **encoder)
                for parameter, name in self.networks.items()
            },
        }
        observation_spec: Any = OBSERVATION
        if case.masked:
            num_values = max(1, sum(SIZES[case.action]))
            mask = BoundedTensorSpec((num_values,), torch.int8, 0, 1)
            observation_spec = {"state": OBSERVATION, "mask": mask}
            arguments["action_mask_key"] = "mask"
        if case.dims > 1:
            arguments["reward_spec"] = TensorSpec((case.dims,))
            if "reward_weights" not in self.options:
                arguments["reward_weights"] = WEIGHTS
        if self.n != (1,):
            arguments["n_step"] = case.n
        if case.action in ("choice", "pair"):
            arguments = {k: v for k, v in arguments.items() if k not in OF_CONTINUOUS}
        arguments |= more
        arguments = {k: v for k, v in arguments.items() if v is not None}
        torch.manual_seed(0)
        algorithm = self.algorithm(observation_spec, ACTIONS[case.action], **arguments)
        move(algorithm, 0.3)
        return algorithm


def move(algorithm: RLAlgorithm, by: float) -> None:
    """Moves all parameters at random."""
    with torch.no_grad():
        for parameter in algorithm.parameters():
            parameter.add_(by * torch.randn_like(parameter))


# The steps


def make_steps(case: Case) -> TimeStep:
    """[B, T, ...] as environments say them: what an end ignored is 0."""
    torch.manual_seed(1)
    step_type = torch.tensor(STEP_TYPES, dtype=torch.int32)
    is_first = step_type == F
    discount = torch.ones(B, T)
    for b, t in TERMINATIONS:
        discount[b, t] = 0.0
    reward = torch.randn(B, T, *[case.dims] * (case.dims > 1))
    reward[is_first] = 0.0
    action = nest.map_structure(lambda s: s.sample((B, T)), ACTIONS[case.action])
    for leaf in nest.flatten(action):
        leaf[::3, 3:] = leaf[::3, 2:3]  # some do the same again and again
        if leaf.is_floating_point():
            leaf[[2, 4], [2, 1]] = 0.0  # as what follows it, which is no action
        leaf[is_first] = 0
    observation: Any = torch.randn(B, T, 3)
    if case.masked:
        observation = {"state": observation, "mask": _make_mask(case, action)}
    return TimeStep(
        step_type=step_type,
        reward=reward,
        discount=discount,
        observation=observation,
        prev_action=action,
    )


def _make_mask(case: Case, prev_action: Any) -> Tensor:
    """[B, T, ...] allows what was done, but at RULED_OUT; nothing where it is over."""
    columns = [torch.randint(0, 2, (B, T, size)) for size in SIZES[case.action]]
    for column, index in zip(columns, _indices(case, prev_action), strict=True):
        taken = index.roll(-1, 1).unsqueeze(-1)
        column.scatter_(2, taken, 1)
        for b, t in TERMINATIONS:
            column[b, t] = 0
        column[RULED_OUT] = 1 - torch.nn.functional.one_hot(
            taken[RULED_OUT][0], column.shape[-1]
        )
    return torch.cat(columns, -1).to(torch.int8)


def _indices(case: Case, action: Any) -> list[Tensor]:
    """Of each discrete component, from 0; 0 also where there was no action."""
    if case.action == "pair":
        return [(action[..., 0] - 1).clamp(min=0), (action[..., 1] - 5).clamp(min=0)]
    if case.action == "box":
        return []
    return [action["gear"] if case.action == "mixed" else action]


def _vector(case: Case, action: Any) -> Tensor | None:
    """The continuous part in [-1, 1]."""
    if case.action not in ("box", "mixed"):
        return None
    move = action["move"] if case.action == "mixed" else action
    return torch.stack([move[..., 0], move[..., 1] / 5 - 1], -1).clamp(-1, 1)


# Noise


def _noise(values: list[float]) -> Callable[..., Tensor]:
    """Stands for torch.randn_like or rand_like: whatever the order, the same."""

    def draw(like: Tensor, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
        numbers = values[: like.shape[-1]] if like.ndim > 1 else [0.5]
        row = torch.tensor(numbers, dtype=dtype or like.dtype)
        return row.expand(like.shape).clone()

    return draw


NORMAL, UNIFORM = [0.7, -1.1], [0.3, 0.8, 0.5]


@contextlib.contextmanager
def same_noise() -> Iterator[None]:
    """All rows draw the same, so that it does not matter in which order they do."""
    with (
        mock.patch.object(torch, "randn_like", _noise(NORMAL)),
        mock.patch.object(torch, "rand_like", _noise(UNIFORM)),
    ):
        yield


class Policy(NamedTuple):
    """π(·|s_t) of all rows, taken apart."""

    probs: list[Tensor]  # [B, size] of each discrete component, without the ruled out
    box: Any  # the distribution of the continuous part, or None

    def log_prob(self, b: int, index: tuple[int, ...], move: Tensor | None) -> Tensor:
        """Of one action, from the parameters of the distributions."""
        total = sum(
            (p[b, i].log() for p, i in zip(self.probs, index, strict=True)), 0.0
        )
        if move is not None:
            loc, scale = self.box.loc[b], self.box.scale[b]
            z = (move - loc) / scale
            total = (
                total - (0.5 * z**2 + scale.log() + 0.5 * math.log(2 * math.pi)).sum()
            )
        return torch.as_tensor(total)

    def entropy(self, b: int) -> Tensor:
        """Of all parts, exact."""
        total: Any = self.choice_entropy(b)
        if self.box is not None:
            total = (
                total
                + (self.box.scale[b].log() + 0.5 * math.log(2 * math.pi * math.e)).sum()
            )
        return torch.as_tensor(total)

    def choice_entropy(self, b: int) -> Tensor:
        """Of the discrete part."""
        allowed = [p[b][p[b] > 0] for p in self.probs]
        return -sum(((p * p.log()).sum() for p in allowed), torch.zeros(()))

    def joint_probs(self, b: int) -> list[Tensor]:
        """Of every joint value of the components, the last one fastest; [1] of none."""
        return [
            math.prod(own, start=torch.ones(()))
            for own in itertools.product(*(p[b] for p in self.probs))
        ]


class Frozen:
    """A critic through which gradients go to the action only."""

    def __init__(self, critic: Any) -> None:
        self._critic = getattr(critic, "_network", critic)  # without the mask
        self.initial_state = self._critic.initial_state

    def encode(self, *inputs: Any) -> Any:
        return self._without_gradient(self._critic.encode, *inputs)

    def evaluate(self, *inputs: Any) -> Any:
        return self._without_gradient(self._critic.evaluate, *inputs)

    def _without_gradient(self, function: Callable[..., Any], *inputs: Any) -> Any:
        self._critic.requires_grad_(False)
        try:
            return function(*inputs)
        finally:
            self._critic.requires_grad_(True)


class Window:
    """Stored steps, and what the networks make of them, one step after the other."""

    def __init__(self, row: Row, algorithm: Any, case: Case, steps: TimeStep) -> None:
        self.algorithm, self.case, self.steps = algorithm, case, steps
        self.options = row.options
        self.num_rows = T - case.n - row.lookahead  # that are trained
        self.burn_in = 0  # steps that only build up the memory
        self.stored: Tensor | None = None  # [B, M] the memory before the first step
        self.old: Any = None  # what was known before the updates, on-policy
        self._known: dict[Any, Any] = {}
        self.indices = _indices(case, steps.prev_action)
        self.vector = _vector(case, steps.prev_action)  # [B, T, 2]
        self.weights = torch.tensor(WEIGHTS if case.dims > 1 else [1.0])

    # The steps

    def is_last(self, t: int, b: int) -> bool:
        return STEP_TYPES[b][t] == L

    def valid(self) -> list[tuple[int, int]]:
        """The steps that are trained."""
        return [
            (t, b)
            for t in range(self.burn_in, self.num_rows)
            for b in range(B)
            if not self.is_last(t, b)
        ]

    def reward(self, t: int, b: int) -> Tensor:
        """[D]."""
        return self.steps.reward[b, t].reshape(-1)

    def n_step(self, t: int, b: int) -> tuple[Tensor, float, int]:
        """G [D], Γ, and the step that is bootstrapped from."""
        total, discount, end = torch.zeros(self.case.dims), 1.0, t
        while end < t + self.case.n and not self.is_last(end, b):
            end += 1
            total = total + discount * self.reward(end, b)
            discount *= GAMMA * self.steps.discount[b, end].item()
        return total, discount, end

    def taken(self, t: int, b: int) -> tuple[int, ...]:
        """The indices of the discrete components of a_t."""
        return tuple(int(index[b, t + 1]) for index in self.indices)

    def move(self, t: int, b: int) -> Tensor | None:
        """The continuous part of a_t, as the environment has it."""
        action = self.steps.prev_action
        if self.vector is None:
            return None
        return (action["move"] if self.case.action == "mixed" else action)[b, t + 1]

    def allowed(self, t: int, b: int) -> list[list[bool]]:
        """Of each discrete component."""
        sizes = SIZES[self.case.action]
        if not self.case.masked:
            return [[True] * size for size in sizes]
        row = self.steps.observation["mask"][b, t].bool()
        return [part.tolist() for part in row.split(sizes)]

    def allows_taken(self, t: int, b: int) -> bool:
        return all(
            a[i] for a, i in zip(self.allowed(t, b), self.taken(t, b), strict=True)
        )

    def joint(self, index: tuple[int, ...]) -> int:
        """The number of a joint value."""
        values = list(itertools.product(*map(range, SIZES[self.case.action])))
        return values.index(index)

    # The networks

    def know(self, key: Any, compute: Callable[[], Any]) -> Any:
        """What is computed once."""
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]

    def over_time(
        self, network: Any, call: Callable[..., Any] | None = None
    ) -> list[Any]:
        """The outputs [B, ...] at every step; the memory begins anew at FIRST."""

        def run() -> list[Any]:
            initial = state = network.initial_state(B)
            if self.stored is not None:
                state = nest.map_structure(lambda _: self.stored, initial)
            outputs = []
            for t in range(T):
                state = reset_state(state, initial, self.steps.step_type[:, t] == F)
                with torch.set_grad_enabled(
                    torch.is_grad_enabled() and t >= self.burn_in
                ):
                    output, state = (call or network)(self.observation(t), state)
                outputs.append(output)
            return outputs

        return self.know((id(network), "over time"), run)

    def observation(self, t: int) -> Tensor:
        """[B, 3], without the mask."""
        observation = self.steps.observation
        return (observation["state"] if self.case.masked else observation)[:, t]

    def policy(self, t: int) -> Policy:
        """π(·|s_t)."""
        return self.know(("policy", t), lambda: self._policy(t))

    def _policy(self, t: int) -> Policy:
        output = self.over_time(self.algorithm._policy.network)[t]
        kind = self.case.action
        box = {"box": output}.get(kind)
        choice: Any = output
        if kind == "mixed":
            box, choice = output["move"], output["gear"]
        probs = []
        if SIZES[kind]:
            rows = [self.allowed(t, b) for b in range(B)]
            logits = choice.logits.split(SIZES[kind], -1)
            for component, own in enumerate(logits):
                allowed = torch.tensor([row[component] for row in rows])
                allowed |= ~allowed.any(-1, keepdim=True)  # it is over: no matter what
                share = own.exp() * allowed
                probs.append(share / share.sum(-1, keepdim=True))
        return Policy(probs, box)

    def frozen(self, critic: Any) -> Frozen:
        """The same critic, which does not learn."""
        return self.know((id(critic), "frozen"), lambda: Frozen(critic))

    def values(self, critic: Any, t: int, vector: Tensor | None) -> Tensor:
        """Q(s_t, ·) [B, n, joint values, D], given the continuous part [B, 2]."""
        network = getattr(critic, "_network", critic)  # without the mask
        features = self.over_time(network, network.encode)[t]
        values = network.evaluate(features, vector)
        shape = (
            B,
            values.shape[1],
            len(list(itertools.product(*map(range, SIZES[self.case.action])))),
        )
        return values.reshape(*shape, -1)

    def q(self, critic: Any, t: int, b: int) -> Tensor:
        """Q_k(s_t, a_t), [n, D]."""

        def compute() -> Tensor:
            vector = None if self.vector is None else self.vector[:, t + 1]
            return self.values(critic, t, vector)

        return self.know((id(critic), "q", t), compute)[
            b, :, self.joint(self.taken(t, b))
        ]

    def components(self, network: Any, t: int, b: int) -> Tensor:
        """Of a Q-network: Q(s_t, ·), [components, values]."""
        return self.over_time(network)[t][b, ..., 0]

    def scalar(self, value: Tensor) -> Tensor:
        """[..., D] → [...], weighted."""
        return value @ self.weights

    def smallest(self, values: Tensor) -> Tensor:
        """[n, D] → [D], all of one critic."""
        return min(values, key=self.scalar)


# The runner


def check_loss(row: Row, case: Case) -> None:
    """Compares one combination."""
    algorithm = row.build(case)
    window, batch = make_batch(row, algorithm, case, SOURCE)
    with same_noise():
        info, _ = LossFunction(algorithm).info(batch)
        loss_info = algorithm.calc_loss(info)
        expected = {(t, b): row.loss(window, t, b) for t, b in window.valid()}
    columns = tuple(torch.tensor(list(expected)).T)  # t, b
    where = f"of {row.algorithm.__name__} with {case}, at {list(expected)}"
    for name in next(iter(expected.values())).parts:
        values = torch.stack([terms.parts[name] for terms in expected.values()])
        _close(_part(loss_info.extra, name)[columns], values, f"{name} {where}")
    values = torch.stack([terms.loss for terms in expected.values()])
    _close(loss_info.loss[columns], values, f"loss {where}")
    if not algorithm.on_policy:
        assert len(loss_info.loss) == window.num_rows
        _check_priority(row, loss_info.priority, expected)
    loss = aggregate_loss(loss_info, batch.valid).loss
    _close(loss, values.mean(), f"mean {where}")
    _check_gradient(algorithm, loss, values.mean(), where)


def check_memory(row: Row, case: Case) -> None:
    """Compares an update with stored memories, a burn-in and importance weights.

    All networks had the same memory in the rollout: which one a part of the state
    belongs to does not matter.
    """
    config = TrainerConfig(
        algorithm_ctor=row.algorithm,
        num_iterations=1,
        unroll_length=1,
        mini_batch_length=T,
        burn_in_length=1,
        priority_replay=True,
    )
    algorithm = row.build(case, config=config, optimizer=Adam())
    weights = torch.linspace(0.5, 1.5, B)
    window, batch = make_batch(
        row, algorithm, case, SOURCE._replace(importance_weights=weights)
    )
    window.burn_in = 1
    window.stored = torch.randn(B, *_MEMORY_SIZE)
    stored = window.stored.expand(T, B, *_MEMORY_SIZE)
    batch = batch._replace(
        state=nest.map_structure(lambda _: stored, algorithm.train_state_spec)
    )
    with same_noise():
        found, _ = LossFunction(algorithm)(batch)
        expected = {(t, b): row.loss(window, t, b) for t, b in window.valid()}
    where = f"of {row.algorithm.__name__} with {case} after a burn-in"
    loss = sum(weights[b] * terms.loss for (_, b), terms in expected.items())
    mean = torch.as_tensor(loss / len(expected))
    _close(found.loss, mean, f"loss {where}")
    _check_priority(row, found.priority, expected)
    _check_gradient(algorithm, found.loss, mean, where)


def make_batch(
    row: Row, algorithm: Any, case: Case, batch_info: BatchInfo = NO_SOURCE
) -> tuple[Window, TrainingBatch]:
    """The steps, and as training gets them."""
    steps = make_steps(case)
    if algorithm.on_policy:
        return _unroll(row, algorithm, case, steps)
    experience, valid = Experience(time_step=steps), steps.step_type != L
    batch = time_major(algorithm.preprocess(experience, valid, batch_info))
    return Window(row, algorithm, case, steps), batch


def _unroll(
    row: Row, algorithm: Any, case: Case, steps: TimeStep
) -> tuple[Window, TrainingBatch]:
    """As the steps were unrolled by the parameters before; the last row bootstraps."""
    initial = state = algorithm.get_initial_rollout_state(B)
    infos, actions = [], []
    with torch.no_grad():
        for t in range(T):
            now = nest.map_structure(lambda x, t=t: x[:, t], steps)
            state = reset_state(state, initial, now.is_first())
            step = algorithm.rollout_step(now, state)
            state = step.state
            infos.append(step.info)
            actions.append(step.output)
    executed = nest.map_structure(
        lambda a: torch.cat([a[:, -1:], a[:, :-1]], 1),
        nest.map_structure(lambda *x: torch.stack(x, 1), *actions),
    )
    steps = steps._replace(prev_action=executed)
    rollout_info = nest.map_structure(lambda x: x.transpose(0, 1), nest.stack(infos))
    is_last = steps.step_type == L
    # As the environment says of a step that it ignored; the mask may rule it out.
    ignored = nest.map_structure(
        lambda s: s.zeros((B, T)).clamp(min=torch.tensor(s.minimum)),
        ACTIONS[case.action],
    )
    rollout_info = rollout_info._replace(
        action=nest.map_structure(
            lambda a, zero: torch.where(expand_dims_as(is_last, a), zero, a),
            rollout_info.action,
            ignored,
        )
    )
    valid = steps.step_type != L
    valid[:, -1] = False
    old = Window(row, algorithm, case, steps)
    known = {
        (t, b): (
            old.policy(t).log_prob(b, old.taken(t, b), old.move(t, b)).item(),
            old.over_time(algorithm._value_network)[t][b].reshape(-1).detach(),
        )
        for t in range(T)
        for b in range(B)
        if t + 1 < T
    }
    known |= {
        (T - 1, b): (
            0.0,
            old.over_time(algorithm._value_network)[T - 1][b].reshape(-1).detach(),
        )
        for b in range(B)
    }
    experience = Experience(time_step=steps, rollout_info=rollout_info)
    batch = time_major(algorithm.preprocess(experience, valid, BatchInfo()))
    move(algorithm, 0.1)  # by updates
    window = Window(row, algorithm, case, steps)
    window.old = known
    return window, batch


def _part(extra: Any, name: str) -> Tensor:
    """The field of ``extra``, or of what is in it."""
    if hasattr(extra, name):
        return getattr(extra, name)
    found = [
        _part(field, name) for field in extra if isinstance(field, tuple) and field
    ]
    return next(part for part in found if part is not None)


def _check_priority(row: Row, priority: Tensor, expected: dict) -> None:
    for b in range(B):
        errors = [e.td_error for (_, of_row), e in expected.items() if of_row == b]
        if not errors:
            assert priority[b] == 0
            continue
        eta = row.options.get("max_priority_weight", 0.9)
        value = eta * max(errors) + (1 - eta) * sum(errors) / len(errors)
        _close(priority[b], value, f"priority of row {b}")


def _check_gradient(algorithm: Any, loss: Tensor, mean: Tensor, where: str) -> None:
    names, parameters = zip(*algorithm.named_parameters(), strict=True)
    trained = [p for p in parameters if p.requires_grad]
    names = [n for n, p in zip(names, parameters, strict=True) if p.requires_grad]
    found = torch.autograd.grad(loss, trained, allow_unused=True)
    expected = torch.autograd.grad(mean, trained, allow_unused=True)
    for name, *gradients in zip(names, found, expected, strict=True):
        own, naive = (torch.zeros(()) if g is None else g for g in gradients)
        _close(*torch.broadcast_tensors(own, naive), f"gradient of {name} {where}")


def _close(found: Tensor, expected: Tensor, what: str) -> None:
    if not torch.allclose(found, expected.to(found), atol=2e-4, rtol=1e-3):
        raise AssertionError(f"{what}: {found.tolist()}, not {expected.tolist()}")
