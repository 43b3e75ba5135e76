"""The base of the optimizers."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from alf_lite.errors import CheckpointError
from alf_lite.fast import twin_of
from alf_lite.optimizers.parameter_options import (
    RATE_FACTOR,
    ParameterOptions,
    check_parameter_options,
    group_parameters,
)
from alf_lite.optimizers.without_compiler import step_without_compiler, without_compiler
from alf_lite.utils.progress import FollowsProgress
from alf_lite.utils.schedulers import (
    ConstantScheduler,
    Schedule,
    Scheduled,
    as_scheduler,
    extreme_values,
    value_at_start,
)

# As torch.nn.utils.clip_grad_norm_ has it.
_CLIPPING_EPSILON = 1e-6
# A private part of torch, for gradients that were scaled; the norm says the same.
_find_non_finite: Any = getattr(
    torch, "_amp_foreach_non_finite_check_and_unscale_", None
)
_DEVICES_WITH_KERNEL = ("cpu", "cuda")
_ADAM = (torch.optim.Adam, torch.optim.AdamW)

Watcher = Callable[[list[Tensor], Tensor], None]


class Optimizer(FollowsProgress):
    """An optimizer of torch with a scheduled learning rate and gradient clipping.

    It is made in a conf, before there are parameters; ``setup`` hands them over later.
    Fused where torch supports it, else foreach.

    Args:
        torch_class: the optimizer of torch that does the steps.
        lr: the learning rate, or a scheduler of it that is asked at every step;
            ``((0.0, 0.001), (1.0, 0.0))`` falls from 0.001 to 0 over the run.
        gradient_clipping: the largest allowed norm of all gradients together; larger
            ones are scaled down to it. None: no clipping.
        parameter_options: of some of the parameters, which the first pattern counts for
            that fits their name, as of a shell: ``{"*bias": {"weight_decay": 0.0},
            "_encoder.*": {"lr_factor": 0.1}}``. What is not named is as for the others;
            ``lr_factor`` multiplies the learning rate.
        hyperparameters: for ``torch_class``.

    Raises:
        ValueError: if a hyperparameter, or a learning rate of the schedule, is out of
            range.
        TypeError: if ``lr`` is neither a number nor a scheduler.
    """

    def __init__(
        self,
        torch_class: Callable[..., torch.optim.Optimizer],
        lr: Scheduled,
        gradient_clipping: float | None,
        parameter_options: ParameterOptions | None = None,
        **hyperparameters: Any,
    ) -> None:
        if gradient_clipping is not None and not 0 < gradient_clipping < math.inf:
            raise ValueError(
                f"{type(self).__name__}: gradient_clipping must be a positive number "
                f"or None, got {gradient_clipping}"
            )
        self._torch_class = torch_class
        self._learning_rate = as_scheduler(lr)
        self._has_constant_rate = isinstance(self._learning_rate, ConstantScheduler)
        self._rate_factor: float | Tensor = 1.0
        self._gradient_clipping = gradient_clipping
        self._hyperparameters = hyperparameters
        self._parameter_options = parameter_options or {}
        self._group_factors = [1.0]
        self._watchers: list[Watcher] = []
        self._named_parameters: list[tuple[str, Parameter]] = []
        self._parameters: list[Parameter] = []
        self._torch_optimizer: torch.optim.Optimizer | None = None
        self._fast_step: Any = None
        self._num_beginnings = 0
        self._one: Tensor | None = None
        # A wrong one should fail where it is given, whenever it would be reached.
        for extreme in extreme_values(self._learning_rate):
            self._checked(extreme)
        # torch checks the hyperparameters.
        self._make_torch_optimizer([Parameter(torch.zeros(1))])
        check_parameter_options(
            type(self).__name__, self._parameter_options, torch_class, hyperparameters
        )

    @property
    def learning_rate(self) -> float:
        """The learning rate at the current progress of training.

        Raises:
            ValueError: if the scheduler returns a negative or no number.
        """
        return self._checked(float(self._rate_factor) * float(self._learning_rate()))

    def scale_learning_rate(self, factor: float | Tensor) -> None:
        """From now on, the learning rate is ``factor`` times what the conf says.

        A factor [] on a GPU is not waited for by Adam.
        """
        self._rate_factor = factor
        self._has_constant_rate = False  # every step sets it anew

    def _next_rate(self) -> float | Tensor:
        """The learning rate of the next step."""
        scheduled: Any = self._learning_rate()
        if isinstance(scheduled, Tensor):  # it is captured for a GPU to repeat
            return (self._rate_factor * scheduled).float()
        if isinstance(self._rate_factor, Tensor) and self._torch_class in _ADAM:
            return (self._rate_factor * self._checked(float(scheduled))).float()
        return self._checked(float(self._rate_factor) * float(scheduled))

    def _checked(self, lr: float) -> float:
        if not 0 <= lr < math.inf:
            raise ValueError(
                f"{type(self).__name__}: the learning rate must be at least 0, got "
                f"{lr} from {self._learning_rate!r}"
            )
        return lr

    def arguments(self) -> dict[str, Any]:
        """Those of the constructor, which build the same optimizer again."""
        lr: Any = self._learning_rate
        if isinstance(lr, Schedule):
            lr = lr.scheduler
        elif isinstance(lr, ConstantScheduler):
            lr = lr.value
        return {
            "lr": lr,
            "gradient_clipping": self._gradient_clipping,
            "parameter_options": self._parameter_options or None,
            **self._hyperparameters,
        }

    @property
    def parameters(self) -> list[Parameter]:
        """The parameters that this optimizer trains."""
        return self._parameters

    @property
    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """The parameters that this optimizer trains, with the names of ``setup``."""
        return self._named_parameters

    def setup(self, named_parameters: Sequence[tuple[str, Parameter]]) -> None:
        """Takes over the parameters to train; none is allowed.

        Raises:
            ValueError: if there is a name or a parameter twice, or if the optimizer has
                parameters already.
            ConfigError: if a pattern of ``parameter_options`` counts for none of them.
        """
        if self._torch_optimizer is not None:
            raise ValueError(
                f"{type(self).__name__} trains {len(self._parameters)} parameters "
                f"already, {[name for name, _ in self._named_parameters[:3]]} … "
                "Every algorithm needs an optimizer of its own: write @Adam() for each."
            )
        named_parameters = list(named_parameters)
        names = [name for name, _ in named_parameters]
        self._refuse_twice("name", names, names)
        self._refuse_twice("parameter", [id(p) for _, p in named_parameters], names)
        groups = group_parameters(
            type(self).__name__, self._parameter_options, named_parameters
        )
        # In the order in which torch counts them
        self._named_parameters = [pair for _, group in groups for pair in group]
        self._parameters = [parameter for _, parameter in self._named_parameters]
        self._group_factors = [options.get(RATE_FACTOR, 1.0) for options, _ in groups]
        (_, first), *others = groups
        # torch refuses an empty list; the stand-in never gets a gradient.
        parameters = [p for _, p in first] or [Parameter(torch.zeros(0))]
        self._torch_optimizer = self._make_torch_optimizer(parameters)
        rate = self._torch_optimizer.param_groups[0]["lr"]
        for options, group in others:
            own = dict(options)
            own["lr"] = rate * own.pop(RATE_FACTOR, 1.0)
            own["params"] = [p for _, p in group]
            self._torch_optimizer.add_param_group(own)

    def _refuse_twice(self, what: str, keys: list[Any], names: list[str]) -> None:
        twice = [i for i, key in enumerate(keys) if key in keys[:i]]
        if twice:
            raise ValueError(
                f"{type(self).__name__}: the same {what} is given twice: "
                f"{[names[i] for i in twice[:5]]}"
            )

    def zero_grad(self) -> None:
        """Drops the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> Tensor:
        """Clips the gradients and applies them. Parameters without gradient stay.

        Returns:
            [], the norm of all gradients before clipping.
        """
        norm = self.clip_gradients()
        self.apply_gradients()
        return norm

    def clip_gradients(self) -> Tensor:
        """Scales the gradients down to the largest allowed norm, in place.

        Does not wait for the device. If the norm is not finite, neither are the
        gradients: check it before ``apply_gradients``, or the parameters are lost.

        Returns:
            [], the norm of all gradients before clipping.
        """
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if not gradients:
            return torch.zeros(())
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        for watcher in self._watchers:
            watcher(gradients, norm)
        if self._gradient_clipping is not None:
            if norm.is_cpu:  # there is nothing to wait for
                scale = self._gradient_clipping / (norm.item() + _CLIPPING_EPSILON)
                if scale < 1:
                    torch._foreach_mul_(gradients, scale)
                return norm
            scales = self._gradient_clipping / (norm + _CLIPPING_EPSILON)
            torch._foreach_mul_(gradients, scales.clamp_(max=1.0))
        return norm

    @property
    def clips_gradients(self) -> bool:
        """Whether ``clip_gradients`` is to be called at every update."""
        return self._gradient_clipping is not None or bool(self._watchers)

    def watch(self, watcher: Watcher) -> None:
        """Has ``watcher`` called at every update, with gradients before clipping.

        Args:
            watcher: called with the gradients that there are, and their norm []. They
                change right after it.
        """
        self._watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """Has it called no more."""
        self._watchers.remove(watcher)

    @property
    def can_be_captured(self) -> bool:
        """Whether a GPU can repeat a step as it is: Adam's, of one group."""
        groups = self._require_setup().param_groups
        return self._torch_class in _ADAM and len(groups) == 1

    @property
    def fixed_by_capture(self) -> tuple[Any, ...]:
        """What a captured step of Adam repeats, whatever it has become since then.

        The memory that it uses counts anew with every beginning, see
        ``num_beginnings``.
        """
        (group,) = self._require_setup().param_groups
        return (
            0 if self._fast_step is None else self._fast_step.layout,
            self._rate_factor,
            group["weight_decay"],
            group["eps"],
            *group["betas"],
            *[parameter.requires_grad for parameter in self._parameters],
        )

    @property
    def num_beginnings(self) -> int:
        """How often what is kept for the parameters was forgotten or replaced."""
        return self._num_beginnings

    def mark_non_finite(self, mark: Tensor) -> None:
        """Sets ``mark`` [] if a gradient is not finite, and else leaves it as it is.

        Takes half of the time of the norm, and does not wait for the device either.
        """
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if not gradients:
            return
        if _find_non_finite is None or mark.device.type not in _DEVICES_WITH_KERNEL:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            mark += norm.isfinite().logical_not()
            return
        if self._one is None or self._one.device != mark.device:
            self._one = torch.ones((), device=mark.device)
        # Also multiplies the gradients with the last argument.
        _find_non_finite(gradients, mark, self._one)

    def apply_gradients(self, skip: Tensor | None = None) -> None:
        """Moves the parameters by their gradients, as they are.

        Args:
            skip: [] float32 on the device of the parameters; at 1 they stay where they
                are, with all that the optimizer keeps. Nobody waits for it.
        """
        optimizer = self._torch_optimizer or self._require_setup()
        if not self._has_constant_rate:
            rate = self._next_rate()
            for group, factor in zip(
                optimizer.param_groups, self._group_factors, strict=True
            ):
                group["lr"] = rate if factor == 1 else factor * rate
        if self._fast_step is None:
            twin = twin_of(optimizer, "step")
            self._fast_step = None if twin is None else twin(optimizer)
        if self._fast_step is not None and self._fast_step(skip):
            return
        self._fast_step = None
        if skip is None:
            step_without_compiler(optimizer)
        else:
            self._step_unless(skip, optimizer)

    def _step_unless(self, skip: Tensor, optimizer: Any) -> None:
        """A step of torch that changes nothing if ``skip`` [] is 1."""
        if optimizer.param_groups[0].get("fused") and self._torch_class in _ADAM:
            optimizer.grad_scale, optimizer.found_inf = None, skip
            step_without_compiler(optimizer)
            del optimizer.grad_scale, optimizer.found_inf
            return
        if not optimizer.state and skip.item():  # there is nothing to go back to yet
            return
        tensors = [p.detach() for p in self._parameters] + [
            value
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, Tensor) and value.device == skip.device
        ]
        before = [tensor.clone() for tensor in tensors]
        step_without_compiler(optimizer)
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(skip != 0, old, tensor))

    def forget(self, parameters: Collection[Parameter] | None = None) -> None:
        """Begins anew, as if no step had been made.

        Args:
            parameters: what is kept for others stays; None: for none.
        """
        state = self._require_setup().state
        forgotten = [
            p for p in self._parameters if parameters is None or p in parameters
        ]
        if len(forgotten) == len(self._parameters):
            state.clear()
        elif not forgotten:
            return
        if self._fast_step is not None:
            self._fast_step.part_counters()  # the next step is torch's own
        # Zeros are what torch begins with. Without them, its fused SGD cannot begin
        # anew with some parameters while it goes on with others.
        for parameter in forgotten:
            for value in state.get(parameter, {}).values():
                if isinstance(value, Tensor):
                    value.zero_()
        self._begin_anew()

    def _begin_anew(self) -> None:
        """After what is kept for the parameters has got other memory."""
        self._fast_step = None
        self._num_beginnings += 1

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on, by parameter name; the tensors themselves.

        Hyperparameters are not part of it: they come from the conf.
        """
        state = self._require_setup().state
        return {
            "optimizer": type(self).__name__,
            "state": {
                name: {k: v for k, v in state[p].items() if v is not None}
                if p in state
                else {}
                for name, p in self._named_parameters
            },
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a copy of what ``state_dict`` returned, or nothing of it.

        Raises:
            CheckpointError: if it is of another optimizer, or of parameters with other
                names or shapes.
        """
        optimizer = self._require_setup()
        self._check_state_dict(state_dict)
        self._begin_anew()
        states = state_dict["state"]
        num_counted = sum(len(group["params"]) for group in optimizer.param_groups)
        first = num_counted - len(self._named_parameters)  # after a stand-in
        with without_compiler():
            optimizer.load_state_dict(
                {
                    "state": {
                        i: {k: v.clone() for k, v in states[name].items()}
                        for i, (name, _) in enumerate(self._named_parameters, first)
                        if states[name]
                    },
                    "param_groups": optimizer.state_dict()["param_groups"],
                }
            )

    def _check_state_dict(self, state_dict: dict[str, Any]) -> None:
        kind = type(self).__name__
        states: Any = state_dict.get("state")
        is_dict = isinstance(states, dict) and all(
            isinstance(state, dict) for state in states.values()
        )
        if state_dict.get("optimizer") != kind or not is_dict:
            raise CheckpointError(
                f"expected the state of an optimizer {kind}, "
                f"got that of {state_dict.get('optimizer')!r}"
            )
        names = {name for name, _ in self._named_parameters}
        if names != set(states):
            raise CheckpointError(
                f"{kind}: the saved state is of other parameters. Missing: "
                f"{sorted(names - set(states))[:5]}, unknown: "
                f"{sorted(set(states) - names)[:5]}"
            )
        keys = self._state_keys()
        for name, parameter in self._named_parameters:
            state = states[name]
            if state and set(state) != keys:
                raise CheckpointError(
                    f"{kind}: the saved state of {name} has {sorted(state)}, "
                    f"expected {sorted(keys)}. Were the hyperparameters changed?"
                )
            for key, value in state.items():
                like = torch.zeros(()) if key == "step" else parameter
                fits = isinstance(value, Tensor) and (value.shape, value.dtype) == (
                    like.shape,
                    like.dtype,
                )
                if not fits:
                    raise CheckpointError(
                        f"{kind}: the saved {key} of {name} should be a tensor "
                        f"{list(like.shape)} of {like.dtype}, got {_describe(value)}"
                    )

    def _state_keys(self) -> set[str]:
        """What torch keeps for a parameter that was updated."""
        parameter = Parameter(torch.zeros(1))
        optimizer = self._make_torch_optimizer([parameter])
        parameter.grad = torch.zeros(1)
        step_without_compiler(optimizer)
        state = optimizer.state[parameter]
        return {key for key, value in state.items() if value is not None}

    def _make_torch_optimizer(
        self, parameters: list[Parameter]
    ) -> torch.optim.Optimizer:
        make = functools.partial(
            self._torch_class,
            parameters,
            # Every step sets it anew.
            lr=self._checked(value_at_start(self._learning_rate)),
            **self._hyperparameters,
        )
        with without_compiler():
            if all(parameter.is_floating_point() for parameter in parameters):
                # Not every optimizer of torch has the argument.
                with contextlib.suppress(RuntimeError, TypeError):
                    return make(fused=True)
            return make(foreach=True)

    def _require_setup(self) -> torch.optim.Optimizer:
        if self._torch_optimizer is None:
            raise RuntimeError(
                f"{type(self).__name__} has no parameters yet: call setup() first"
            )
        return self._torch_optimizer

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(lr={self._learning_rate!r}, "
            f"gradient_clipping={self._gradient_clipping}, "
            f"{len(self._parameters)} parameters)"
        )


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    return f"a {type(value).__name__}"
