"""Collects experience from an environment in torch by compiled code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import Experience, TimeStep
from alf_lite.environments.torch_vector_env import BatchState, TorchVectorEnv
from alf_lite.unrollers.sync_unroller import SyncUnroller, UnrollRows
from alf_lite.unrollers.unroll import ActingPolicy
from alf_lite.utils.compiling import compiled
from alf_lite.utils.tensor_utils import reset_state

Nest = Any
# Steps of an unroll at which is asked whether the code still fits, in 40 µs.
_NUM_GUARDED = 3


def _fast_options() -> dict[str, Any]:
    """Of ``torch.compile``."""
    # With eager's random numbers, so that both act alike.
    options = {"fallback_random": True}
    # By exponentials, in a third of the time on a CPU; the error is one of 1e-7. With
    # two layers of 64 units, tanh takes longer than the products.
    tanh = "cpp.use_decompose_tanh"
    if tanh in torch._inductor.list_options():
        options[tanh] = True
    return {"options": options}


class _Step(NamedTuple):
    """What acting and stepping leads to."""

    env_state: BatchState
    time_step: TimeStep
    policy_state: Nest
    transform_state: Nest
    experience: Experience  # of the step before


class CompiledUnroller(SyncUnroller):
    """Steps by ``torch.compile``, and may act in the same graph.

    What comes out is what :class:`SyncUnroller` collects with the same seeds, up to
    rounding.

    With ``acts_in_graph`` acting and stepping are one graph, which is called T times.
    The bootstrap row is acted on by the same graph, whose step is thrown away. One
    graph of all T steps would be little faster, and its compilation takes T times as
    long: four minutes for 32 steps in which 15 % would be saved.

    Without it only the step is compiled. On a CPU, where a policy acts in numpy, that
    takes about as long, and a third of the time to compile.

    Args:
        env: on the device of the policy; closed by its owner.
        policy: see ``SyncUnroller``, as for the others.
        rollout_step: acts where the graph does not.
        acts_in_graph: see above.
        acts_otherwise: whether actions are other ones than the policy's for now, such
            as random ones.
        compile_options: of ``torch.compile``; None: the fastest.
    """

    def __init__(
        self,
        env: TorchVectorEnv,
        policy: ActingPolicy,
        *,
        acts_in_graph: bool,
        acts_otherwise: Callable[[], bool] = lambda: False,
        compile_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(env, policy, **kwargs)
        self._torch_env = env
        self._acts_in_graph = acts_in_graph
        self._acts_otherwise = acts_otherwise
        options = _fast_options() if compile_options is None else compile_options
        self._step = compiled(env.next_step, **options)
        self._act_and_step = compiled(_act_and_step(env, policy), **options)

    def _run(self, length: int, bootstrap: bool, rows: UnrollRows) -> float:
        env = self._torch_env
        env_state, next_step = env.state, self._time_step
        self._begin(length, rows, next_step)
        random = env.draw(max(length, 1)).unbind(0)
        in_graph = self._acts_in_graph and not self._acts_otherwise()
        take_step = self._one_graph if in_graph else self._two_calls
        experience = Experience()
        with contextlib.ExitStack() as stack:
            for t in range(length + bootstrap):
                time_step = next_step
                goes_on = t < length
                step = take_step(
                    env_state, time_step, random[t] if goes_on else None, random[0]
                )
                experience = step.experience
                if goes_on:
                    env_state, next_step = step.env_state, step.time_step
                    self._policy_state = step.policy_state
                    self._transform_state = step.transform_state
                rows.add(time_step, experience)
                if t == _NUM_GUARDED - 1:
                    # What came out of the code goes in: it fits from here on.
                    stack.enter_context(
                        torch.compiler.set_stance(skip_guard_eval_unsafe=True)
                    )
        self._time_step = next_step
        if length:
            env.go_on_from(env_state, next_step, experience.action)
        # The environment's share is not known.
        return 0.0

    def _one_graph(
        self,
        env_state: BatchState,
        time_step: TimeStep,
        random: Tensor | None,
        any_random: Tensor,
    ) -> _Step:
        # Nothing is compiled again for another object that is empty, too.
        initial_state = self._zeros()[0] if self._has_policy_state else ()
        return self._act_and_step(
            (env_state, time_step, self._policy_state, self._transform_state),
            initial_state,
            any_random if random is None else random,
        )

    def _two_calls(
        self,
        env_state: BatchState,
        time_step: TimeStep,
        random: Tensor | None,
        any_random: Tensor,
    ) -> _Step:
        state, next_step = self._policy_state, time_step
        if self._has_policy_state:
            state = reset_state(state, self._zeros()[0], time_step.is_first())
        inputs, transform_state = self._policy.transform_timestep(
            time_step, self._transform_state
        )
        step = self._rollout_step(inputs, state)
        action = step.output
        if random is not None:
            env_state, next_step = self._step(env_state, action, random)
            if self._policy.overwrite_policy_output:
                action = next_step.prev_action
        seen = () if inputs is time_step else inputs
        experience = Experience(seen, action, step.info, state)
        return _Step(env_state, next_step, step.state, transform_state, experience)


def _act_and_step(env: TorchVectorEnv, policy: ActingPolicy) -> Callable[..., _Step]:
    """What is compiled, a function of tensors alone."""
    overwrites_action = policy.overwrite_policy_output

    def act_and_step(
        before: tuple[BatchState, TimeStep, Nest, Nest],
        initial_state: Nest,
        random: Tensor,
    ) -> _Step:
        env_state, time_step, state, transform_state = before
        if not nest.is_empty(initial_state):
            state = reset_state(state, initial_state, time_step.is_first())
        inputs, transform_state = policy.transform_timestep(time_step, transform_state)
        step = policy.rollout_step(inputs, state)
        env_state, next_step = env.next_step(env_state, step.output, random)
        action = next_step.prev_action if overwrites_action else step.output
        seen = () if inputs is time_step else inputs
        experience = Experience(seen, action, step.info, state)
        return _Step(env_state, next_step, step.state, transform_state, experience)

    return act_and_step
