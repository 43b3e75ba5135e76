"""What is computed in numpy, or in one node of torch's graph, in place of torch's own.

Equations are written in torch, in the file of their algorithm. On a CPU a call of numpy
takes a third of the time of one of torch, and torch's graph costs as much again: of
small networks and batches, calls are most of the time. The bodies that matter have a
twin in this room that gives what they give.

The table is all there are. A body that has :func:`quick` above it looks up the **exact
type** of its first argument: a subclass has no row, and is computed by its methods. So
is an object of which a method was replaced. A twin is asked at every call and looks at
what it stands for: parts of other types, hooks, layers that were put in the place of
others, other devices or precisions, and operations that are recorded or transformed
are no concern of it: it returns ``NotImplemented``, and the body runs. What nobody
notices is another method on a shipped class itself, ``PPOAlgorithm.calc_loss = f``:
derive a class.

``ALF_LITE_FAST=0`` in the environment empties the table. A subclass that changes no
equation may have rows of its own:

    fast.TWINS["my_module.LoggingPPO.quick_loss"] = "policy_losses.of_ppo"
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

_Body = TypeVar("_Body", bound=Callable[..., Any])

# From gradients of the outputs, None where there is none, to those of the inputs
Pullback = Callable[..., tuple[np.ndarray | None, ...]]
# From arrays to the outputs and their pullback
NumpyFunction = Callable[..., tuple[tuple[np.ndarray, ...], Pullback]]

_DQNS = ("Dqn", "CqlDqn", "Dqfd", "MunchausenDqn", "R2d2", "Sarsa")
_CHAINS = (
    *("Actor", "ActorDistribution", "Feature", "NormalActor", "Q", "SquashedActor"),
    "Value",
)
_PAIRING = (
    *("Cql", "CqlDqn", "Crossq", "Ddpg", "Dqn", "Edac", "MunchausenDqn", "Oac", "R2d2"),
    *("Redq", "Sac", "Td3", "Td3Bc", "TracSac"),
)
# The method of a type, or the function of a tensor -> its twin, in a module of this
# room that is loaded when it is first needed. Types have names of their own; those of
# others have their module before it.
TWINS = {
    # Distributions
    "Categorical.log_prob_and_entropy": "likelihoods.choice",
    "DiagonalNormal.log_prob_and_entropy": "likelihoods.normal",
    # Statistics of batches, returns and transitions
    "losses._masked_mean": "statistics.masked_mean",
    "losses._normalized": "statistics.normalized",
    "transitions._sums": "statistics.n_step_sums",
    "value_ops._lambda_sums": "statistics.lambda_sums",
    # Losses: of steps, and of whole mini-batches by one node
    "ClippedLoss.__call__": "policy_losses.of_steps",
    "PolicyGradientLoss.__call__": "policy_losses.of_steps",
    "ActorCriticAlgorithm.quick_loss": "policy_losses.of_actor_critic",
    "ImpalaAlgorithm.quick_loss": "policy_losses.of_actor_critic",
    "PPGAlgorithm.quick_loss": "policy_losses.of_ppo",
    "PPOAlgorithm.quick_loss": "policy_losses.of_ppo",
    "SacAlgorithm.quick_loss": "pathwise_losses.of_sac",
    "DdpgAlgorithm.quick_loss": "pathwise_losses.of_ddpg",
    "Td3Algorithm.quick_loss": "pathwise_losses.of_ddpg",
    "DqnAlgorithm.quick_loss": "q_learning.of_dqn",
    "R2d2Algorithm.quick_loss": "q_learning.of_dqn",
    "Agent.quick_loss": "joint_losses.of_composition",
    "Composition.quick_loss": "joint_losses.of_composition",
    "DynamicActionRepeatAgent.quick_loss": "joint_losses.of_composition",
    # Optimizers, after their first step
    "torch.optim.adam.Adam.step": "adam_step.fused",
    "torch.optim.adamw.AdamW.step": "adam_step.fused",
    # Networks: chains of linear layers and activations
    **{f"{x}Network.forward": "chains.forward" for x in _CHAINS},
    # Greedy actions, and transitions of windows that are not taken apart
    **{f"{x}Algorithm.predict_step": "q_learning.predict_step" for x in _DQNS},
    **{f"{x}Algorithm.rollout_step": "q_learning.rollout_step" for x in _DQNS},
    **{f"{x}Algorithm.preprocess_experience": "statistics.pair" for x in _PAIRING},
}
if os.environ.get("ALF_LITE_FAST") == "0":
    TWINS.clear()

# By the name of a method, or that of a function with its module: of the types that
# were looked up, what the table has.
_found: dict[str, dict[type, Callable[..., Any] | None]] = {}
_methods: dict[type, frozenset[str]] = {}
# Attribute of an object: how many it had when no method was replaced, which adds one
_SIZE = "_size_as_shipped"


def quick(body: _Body) -> _Body:
    """Has the twin of ``body`` asked first, if the table has one of it.

    That of a function is found if its first argument is a plain tensor.
    """
    name = body.__name__ if "." in body.__qualname__ else _name_of(body)
    known = _found.setdefault(name, {})

    @functools.wraps(body)
    def shortcut(first: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            kind = type(first)  # as twin_of does: acting consists of small calls
            twin = known[kind] if kind in known else _look_up(kind, name)
            if twin is not None and (kind is Tensor or _is_untouched(first)):
                result = twin(first, *args, **kwargs)
                if result is not NotImplemented:
                    return result
        return body(first, *args, **kwargs)

    return shortcut  # type: ignore[return-value]


def twin_of(part: Any, method: str) -> Callable[..., Any] | None:
    """What stands for a method of ``part``, if it is of the very type of a row."""
    if is_compiling():
        return None
    kind, known = type(part), _found.setdefault(method, {})
    twin = known[kind] if kind in known else _look_up(kind, method)
    return twin if twin is not None and _is_untouched(part) else None


def computes_loss_of(algorithm: Any) -> bool:
    """Whether numpy computes the policy gradient losses of ``algorithm`` on a CPU."""
    twin = twin_of(algorithm, "quick_loss")
    if twin is None:
        return False
    room = vars(importlib.import_module(twin.__module__))
    return "computes_loss_of" in room and room["computes_loss_of"](algorithm)


def forget() -> None:
    """Has rows that were changed be looked up again."""
    for known in _found.values():
        known.clear()


def is_exactly(part: Any, *types: type) -> bool:
    """Whether it is of one of the very types, and no method of it was replaced."""
    return type(part) in types and _is_untouched(part)


def torch_body(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a function or method with :func:`quick` computes without its twin."""
    return inspect.unwrap(function)


def _look_up(kind: type, method: str) -> Callable[..., Any] | None:
    twin = _found[method][kind] = _load(
        method if kind is Tensor else f"{_name_of(kind)}.{method}"
    )
    return twin


def _load(name: str) -> Callable[..., Any] | None:
    if name not in TWINS:
        return None
    module, _, twin = TWINS[name].rpartition(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), twin)


def _name_of(what: Any) -> str:
    """Of a class or function; with its module, if that is not one of ours."""
    module = what.__module__
    if module.startswith("alf_lite."):
        module = "" if isinstance(what, type) else module.rpartition(".")[2]
    return f"{module}.{what.__qualname__}".lstrip(".")


def _is_untouched(part: Any) -> bool:
    """Whether no method was replaced on this object alone."""
    own, kind = part.__dict__, type(part)
    if own.get(_SIZE) == len(own):  # asked at every step
        return True
    if kind not in _methods:
        _methods[kind] = frozenset(
            name
            for base in kind.__mro__
            for name, value in vars(base).items()
            if inspect.isfunction(value)
        )
    if not _methods[kind].isdisjoint(own):
        return False
    own[_SIZE] = len(own) + (_SIZE not in own)
    return True


# Whether numpy may compute


def may_use_numpy(x: Tensor) -> bool:
    """Whether numpy computes with ``x`` and such as it, and faster than torch."""
    return (
        x.is_cpu
        and x.dtype is torch.float32
        and not is_traced()  # before the size, which has no value in a graph
        and (x.numel() <= _MAX_SIZE or torch.get_num_threads() == 1)
    )


# Of more numbers torch makes several threads, if it may.
_MAX_SIZE = 2**15


def may_make_node() -> bool:
    """Whether there is a graph, and a node of it that numpy computes may be one."""
    return (
        torch.is_grad_enabled()
        and not is_traced()
        and not torch.is_autocast_enabled("cpu")
    )


def is_traced() -> bool:
    """Whether operations are recorded or transformed, so that all must be torch's."""
    return (
        is_compiling()
        or torch._C._is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


# One node of torch's graph for what is computed otherwise


class Computation:
    """What a node gives, and how gradients go back through it.

    An object belongs to one node, and may keep what both directions need.
    """

    def forward(self, *inputs: Any) -> Any:
        """A tensor or several, without a graph; leaves the inputs as they are."""
        raise NotImplementedError

    def backward(self, needs: Any, *gradients: Any) -> Sequence[Tensor | None]:
        """The gradients of the inputs that need one, from those of the outputs."""
        raise NotImplementedError

    def in_torch(self, *inputs: Any) -> Any:
        """As ``forward``, with a graph: for gradients of gradients."""
        raise NotImplementedError


class Node(torch.autograd.Function):
    """``Node.apply(computation, *inputs)``: its outputs, differentiable in the inputs.

    Inputs are tensors, or None.
    """

    @staticmethod
    def forward(ctx: Any, computation: Computation, *inputs: Any) -> Any:
        ctx.save_for_backward(*inputs)  # notices when they are changed
        ctx.computation = computation
        with np.errstate(all="ignore"):  # torch does not warn either
            outputs = computation.forward(*inputs)
        ctx.set_materialize_grads(isinstance(outputs, Tensor))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        inputs, needs = ctx.saved_tensors, ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            in_torch = ctx.computation.in_torch
            return None, *_differentiable(in_torch, inputs, gradients, needs)
        with np.errstate(all="ignore"):
            return None, *ctx.computation.backward(needs, *gradients)


def by_numpy(
    function: NumpyFunction, in_torch: Callable[..., Any], *inputs: Tensor
) -> tuple[Tensor, ...]:
    """The outputs of ``function``, differentiable in its inputs.

    Args:
        function: called with the inputs as arrays, which it leaves as they are.
        in_torch: the same of the inputs, see :meth:`Computation.in_torch`.
        inputs: such as :func:`may_use_numpy` says.
    """
    computation = _ByNumpy(function, in_torch)
    if torch.is_grad_enabled():
        return Node.apply(computation, *inputs)
    with np.errstate(all="ignore"):
        return computation.forward(*inputs)


class _ByNumpy(Computation):
    def __init__(self, function: NumpyFunction, in_torch: Callable[..., Any]) -> None:
        self._function = function
        self.in_torch = in_torch  # type: ignore[method-assign]
        self._pullback: Pullback

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        arrays = map(Tensor.numpy, map(Tensor.detach, inputs))
        outputs, self._pullback = self._function(*arrays)
        return tuple(map(torch.from_numpy, outputs))

    def backward(self, needs: Any, *gradients: Tensor | None) -> list[Tensor | None]:
        found = self._pullback(*[None if g is None else g.numpy() for g in gradients])
        return [None if x is None else torch.from_numpy(x) for x in found]


def known_loss(
    mean: Tensor, parameters: Sequence[Any], gradients: Sequence[Any]
) -> Tensor:
    """``mean`` [], with a graph to the parameters that have a gradient, not None.

    Nobody else may keep these, so that the parameters need no copy of them.
    """
    pairs = zip(parameters, gradients, strict=True)
    found = [(p, g) for p, g in pairs if g is not None]
    known = mean, [g for _, g in found]
    with torch.enable_grad():
        loss: Tensor = _KnownLoss.apply(known, *[p for p, _ in found])
    return loss


class _KnownLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, known: tuple[Tensor, list[Tensor]], *parameters: Tensor
    ) -> Tensor:
        ctx.save_for_backward(*parameters)  # notices when they are changed
        mean, ctx.gradients = known
        return mean

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("the gradient of a mean loss has no gradient of its own")
        found = ctx.gradients if ctx.saved_tensors else []
        if _keeps_graph():
            found = [*map(torch.clone, found)]
        else:
            ctx.gradients = []  # theirs who get them
        if gradient.item() != 1:
            torch._foreach_mul_(found, gradient)
        return None, *found


# Whether gradients are asked for again; where torch does not say so, they may be
_keeps_graph: Callable[[], bool] = getattr(
    torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True
)


def _differentiable(
    in_torch: Callable[..., Any],
    inputs: Sequence[Any],
    gradients: Sequence[Any],
    needs: Sequence[bool],
) -> list[Tensor | None]:
    """The gradients of the inputs, by torch."""
    # One may depend on another
    inputs = [None if x is None else x.view_as(x) for x in inputs]
    outputs = in_torch(*inputs)
    if isinstance(outputs, Tensor):
        outputs = (outputs,)
    pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
    wanted = [x for x, is_needed in zip(inputs, needs, strict=True) if is_needed]
    found = iter(
        torch.autograd.grad(
            [o for o, _ in pairs],
            wanted,
            [g for _, g in pairs],
            create_graph=True,
            allow_unused=True,
        )
    )
    return [next(found) if is_needed else None for is_needed in needs]
