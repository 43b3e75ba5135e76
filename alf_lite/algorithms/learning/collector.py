"""Collecting: the unroller of a run, and what looks at new steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.algorithms.learning.captured_update import schedules_of
from alf_lite.algorithms.rl_contract import RLContract
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import AlgStep, Experience, TimeStep
from alf_lite.environments.environment import Environment
from alf_lite.environments.specs_only_environment import RemoteEnvironment
from alf_lite.environments.torch_vector_env import TorchVectorEnv
from alf_lite.errors import AlfLiteError, CheckpointError
from alf_lite.metrics.metrics import MetricSet
from alf_lite.unrollers.async_unroller import AsyncUnroller
from alf_lite.unrollers.compiled_unroller import CompiledUnroller
from alf_lite.unrollers.sync_unroller import SyncUnroller
from alf_lite.unrollers.unroll import Unroll, UnrollJoiner
from alf_lite.utils import summary
from alf_lite.utils.compiling import compiled
from alf_lite.utils.device_graphs import CapturedFunction
from alf_lite.utils.interruption import interruption
from alf_lite.utils.ranks import ranks, share_statistics, sharing_modules

Nest = Any

# A compiled call costs 15 µs more than one that is not.
_MIN_BATCH_TO_COMPILE = 256


class Collector:
    """Acts in the environment, and shows the steps to all who want to see them.

    The unroller is made when it is first needed: workers shall not start before there
    is something to do.

    Args:
        algorithm: acts; the root of the run, with its data transformer.
        config: of the run.
        env: to act in; a ``RemoteEnvironment`` is stepped by unroll workers. Closed
            at the end.
        metrics: observe the untransformed steps.
        store: is given every unroll, once it was observed; None if nobody keeps them.
    """

    def __init__(
        self,
        algorithm: RLContract,
        config: TrainerConfig,
        env: Environment,
        metrics: MetricSet,
        store: Callable[[Unroll], None] | None,
    ) -> None:
        self._algorithm = algorithm
        self._config = config
        self._env = env
        self._metrics = metrics
        self._store = store
        # Hooks that want to see all steps [T, B, ...], as the environment returned them
        self.listeners: list[Callable[[TimeStep], None]] = []
        self._rollout_step: Callable[[TimeStep, Nest], AlgStep] = algorithm.rollout_step
        self._unroller: SyncUnroller | AsyncUnroller | None = None
        self._joiner = UnrollJoiner(algorithm.device if store is None else None)
        self._acts_randomly = False  # during an unroll
        self._untaken: list[TimeStep] = []  # not yet in transformers' statistics
        self._with_grad = algorithm.unrolls_with_grad
        self._bootstrap = algorithm.on_policy
        self._saved_unroll: dict[str, Any] = {}  # until the environment is resumed

    # How it acts

    def set_up(self) -> None:
        """Compiles acting, if the configuration says so."""
        if self._steps_in_compiled_code(self._env):
            return  # with or without acting, as is faster
        if self._config.compile and self._acts_in_large_batches():
            # With eager's random numbers, so that both act alike.
            self._rollout_step = compiled(
                self._algorithm.rollout_step, options={"fallback_random": True}
            )
        if self._config.cuda_graphs:
            self._rollout_step = captured_rollout_step(
                self._algorithm, self._rollout_step
            )

    def _acts_in_large_batches(self) -> bool:
        if self._with_grad:
            return False
        is_large = self._env.batch_size >= _MIN_BATCH_TO_COMPILE
        return is_large or self._algorithm.device.type != "cpu"

    def _steps_in_compiled_code(self, env: Environment) -> TypeGuard[TorchVectorEnv]:
        if not self._config.compile or self._with_grad:
            return False
        return isinstance(env, TorchVectorEnv) and env.device == self._algorithm.device

    @property
    def unroller(self) -> SyncUnroller | AsyncUnroller:
        """Steps the environment, in this process or in others."""
        if self._unroller is None:
            self._unroller = self._make_unroller()
        return self._unroller

    def _make_unroller(self) -> SyncUnroller | AsyncUnroller:
        algorithm, env = self._algorithm, self._env
        if isinstance(env, RemoteEnvironment):
            return AsyncUnroller(
                self._config,
                env,
                algorithm.acting_state().capture,
                on_policy=self._bootstrap,
            )
        if self._steps_in_compiled_code(env):
            return CompiledUnroller(
                env,
                algorithm,
                rollout_step=self._act,
                acts_in_graph=algorithm.device.type != "cpu",
                acts_otherwise=lambda: self._acts_randomly,
            )
        may_act_randomly = self._config.initial_random_policy
        return SyncUnroller(
            env,
            algorithm,
            rollout_step=self._act if may_act_randomly else self._rollout_step,
            with_grad=self._with_grad,
        )

    def _act(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """``rollout_step``, or a random action while the replay buffer fills."""
        if self._acts_randomly:
            return self._algorithm.random_step(inputs, state, self._rollout_step)
        return self._rollout_step(inputs, state)

    # Collecting

    def collect(self, length: int, *, acts_randomly: bool) -> Experience:
        """``length`` steps of every environment, see ``RLAlgorithm.unroll``.

        Args:
            length: T.
            acts_randomly: actions are any, in this process; workers are told by
                themselves.
        """
        unroller = self.unroller
        if self._config.unroll_episodes is None and self._untaken:
            self.update_statistics()  # nobody has trained on these steps
        self._algorithm.set_training(False)
        self._acts_randomly = acts_randomly
        before, interruption.is_harmless = interruption.is_harmless, True
        try:
            if isinstance(unroller, SyncUnroller):
                unrolls = [unroller.unroll(length, bootstrap=self._bootstrap)]
            else:
                unrolls = unroller.unroll(length)
        finally:
            interruption.is_harmless = before
        experience = self._take_in(unrolls)
        if ranks.size > 1:
            share_statistics(self._sharing_modules)
        return experience

    @functools.cached_property
    def _sharing_modules(self) -> list[Any]:
        """What keeps statistics of the whole run and is up to date after an unroll."""
        algorithm = self._algorithm
        later = sharing_modules(algorithm.data_transformer) if self._bootstrap else []
        return [part for part in sharing_modules(algorithm) if part not in later]

    def take_what_is_there(self, at_least: int, at_most: int) -> Experience | None:
        """What unroll workers have finished; metrics and buffers see it, too.

        Args:
            at_least: wait for so many steps of a worker.
            at_most: leave the others for the next time.

        Returns:
            As :meth:`collect`, the steps side by side; None if there are none.
        """
        unroller = self.unroller
        assert isinstance(unroller, AsyncUnroller), "checked by TrainerConfig"
        before, interruption.is_harmless = interruption.is_harmless, True
        try:
            unrolls = unroller.collect(at_least, at_most)
        finally:
            interruption.is_harmless = before
        return self._take_in(unrolls) if unrolls else None

    def _take_in(self, unrolls: list[Unroll]) -> Experience:
        """Gives the unrolls, in their order, to all who want to see them."""
        seconds = 0.0
        for unroll in unrolls:
            # Row 0 was the last row of the previous unroll, except after a reset.
            first_row = 0 if unroll.is_first_unroll else 1
            if unroll.new_columns:
                self._observe(_first_steps(unroll, list(unroll.new_columns)))
            num_rows = unroll.time_steps.step_type.shape[0]
            new_steps = unroll.rows(first_row, num_rows)
            there = None
            if isinstance(unroll.taken_steps, TimeStep):
                there = nest.narrow(unroll.taken_steps, first_row, num_rows)
            self._observe(new_steps, there)
            if unroll.may_have_restarts:  # which the metrics do not count
                unroll.mark_cut_off()
            if self._store is not None:
                self._store(unroll)
            seconds += unroll.env_step_seconds
        summary.scalar("time/unroll_env_step", seconds)
        return self._joiner.join(unrolls)

    def _observe(self, new_steps: TimeStep, there: TimeStep | None = None) -> None:
        """Shows [T, B, ...] to the metrics and to the statistics of transformers.

        On-policy, these wait for :meth:`update_statistics`.

        Args:
            new_steps: as the environment returned them.
            there: the same on the device of the policy, if that is another one.
        """
        algorithm = self._algorithm
        if self._with_grad:
            new_steps = nest.map_structure(Tensor.detach, new_steps)
        self._metrics.observe(new_steps)
        for listener in self.listeners:
            listener(new_steps)
        if algorithm.has_multidim_reward:
            algorithm.observe_rewards(new_steps)
        if algorithm.data_transformer.is_identity:
            return
        steps = new_steps if there is None else there
        if not self._bootstrap:
            algorithm.data_transformer.observe(steps)
        elif self._config.unroll_episodes is None:
            self._untaken.append(steps)
        else:  # whose next unroll uses the memory again
            self._untaken.append(nest.map_structure(torch.clone, steps))

    def update_statistics(self) -> None:
        """Has transformers take in what was collected on-policy.

        Not before the unroll is prepared for training: as long as it is, transformers
        scale as they did while it was acted.
        """
        transformer, untaken = self._algorithm.data_transformer, self._untaken
        self._untaken = []
        for steps in untaken:
            transformer.observe(steps)
        share_statistics(sharing_modules(transformer))

    # Episodes

    def reset(self, seed: int | None) -> bool:
        """Begins new episodes; unroll workers that are started go on undisturbed.

        Returns:
            Whether open episodes were cut.
        """
        unroller = self.unroller
        if isinstance(unroller, AsyncUnroller) and unroller.is_started:
            return False
        unroller.reset(seed)
        self._metrics.drop_open_episodes()
        return True

    @property
    def has_open_episodes_to_resume(self) -> bool:
        """Whether ``load_state_dict`` has brought some."""
        return bool(self._saved_unroll)

    def resume(self, seed: int) -> str:
        """Continues the open episodes that ``load_state_dict`` has brought.

        Args:
            seed: of new episodes, where that cannot be done.

        Returns:
            In which environments that is so, and why; empty if in none.
        """
        saved, self._saved_unroll = self._saved_unroll, {}
        unroller = self.unroller
        assert isinstance(unroller, SyncUnroller), "workers have no state"
        try:
            reasons = unroller.load_state_dict(saved, seed)
        except AlfLiteError:
            raise
        except Exception as error:  # whatever is in it makes the readers raise
            raise CheckpointError(
                f"the open episodes of the checkpoint are malformed: {error!r}"
            ) from error
        return "; ".join(
            f"environments {', '.join(str(i) for i in reasons if reasons[i] == reason)}"
            f" ({reason})"
            for reason in dict.fromkeys(reasons.values())
        )

    def why_all_are_new(self) -> str:
        """Why there are no open episodes to resume."""
        if isinstance(self.unroller, AsyncUnroller):
            return "unroll workers do not repeat what others did"
        if self._env.episode_state() is None:
            return "they cannot repeat what others did"
        return "the checkpoint has none: an old one, broken off, or of other ranks"

    def close(self) -> None:
        """Ends the unroll workers and closes the environment."""
        if isinstance(self._unroller, AsyncUnroller):
            self._unroller.close()
        self._env.close()

    def state_dict(self) -> dict[str, Any]:
        """The open episodes; empty if new ones begin where the run is resumed."""
        # Steps of an unroll that was broken off are nowhere: episodes have a gap there.
        if not isinstance(self._unroller, SyncUnroller) or interruption.in_iteration:
            return {}
        return self._unroller.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keeps what ``state_dict`` returned for :meth:`resume`."""
        self._saved_unroll = state


def captured_rollout_step(
    algorithm: RLContract, rollout_step: Callable[[TimeStep, Nest], AlgStep]
) -> Callable[[TimeStep, Nest], AlgStep]:
    """``rollout_step`` by a CUDA graph; its result is overwritten by the next call."""
    captured = CapturedFunction(
        lambda inputs: rollout_step(*inputs),
        f"rollout_step of {algorithm.name}",
        schedules=lambda: schedules_of(algorithm),
    )
    return lambda inputs, state: captured((inputs, state))


def _first_steps(unroll: Unroll, columns: list[int]) -> TimeStep:
    """Row 0 of some columns, [1, len(columns), ...]."""
    return nest.map_structure(lambda t: t[:1, columns], unroll.time_steps)
