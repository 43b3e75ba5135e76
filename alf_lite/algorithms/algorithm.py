"""The base of everything that is trained: its methods, states and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from alf_lite import nest
from alf_lite.algorithms.learning.optimizer_owner import OptimizerOwner
from alf_lite.algorithms.learning.update_guard import UpdateGuard
from alf_lite.checkpoints import checkpointer as checkpoints
from alf_lite.checkpoints.data import load_module_state
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import AlgStep, BatchInfo, LossInfo, StepType, TimeStep
from alf_lite.errors import ConfigError, EnvError
from alf_lite.fast import quick
from alf_lite.networks.network import says_that_it_takes_them, takes_whole_sequences
from alf_lite.optimizers.optimizers import Optimizer
from alf_lite.tensor_specs import NestedTensorSpec
from alf_lite.utils.normalizers import Normalizer, NotFiniteError

Nest = Any

# Methods that are called only if a flag of the class says so
_METHODS_WITH_FLAG = (
    ("train_step", "trains_on_rollout_info", False),
    ("train_step_offline", "has_offline_loss", True),
    ("calc_loss_offline", "has_offline_loss", True),
    ("should_stop_updates", "stops_updates_early", True),
)


class Algorithm(OptimizerOwner):
    """A module that acts, computes its own loss and owns its optimizers.

    The methods in the order a step of training calls them. This is the whole
    contract between an algorithm and the loops around it:

        rollout_step → preprocess_experience → train_step → calc_loss → after_update
        → after_train_iter,   and predict_step for evaluation.

    Algorithms nest: a child algorithm is an ordinary submodule, with optimizers of its
    own or without. Its methods are called by the :class:`Composition` that it is a part
    of, or by the parent itself, which then names it in ``forwarded_children``.

    Args:
        train_state_spec: recurrent state of ``train_step``; ``()`` if stateless.
        rollout_state_spec: that of ``rollout_step``; None means the one above.
        predict_state_spec: that of ``predict_step``; None means as the rollout's.
        optimizer: trains every parameter below this module that no child's optimizer
            claims. More are added with :meth:`add_optimizer`.
        checkpoint: ``"prefix@path"`` loads the part of a checkpoint below ``prefix``
            into this module before training starts.
        config: of the training run; only the algorithm that trains itself needs it.
        name: in summaries and messages; the class name by default.
    """

    # Steps at the end of a window that are bootstrapped from and not trained.
    num_bootstrap_steps: int = 1
    # On-policy: ``calc_loss`` gets what ``rollout_step`` returned; no ``train_step``.
    trains_on_rollout_info: bool = False
    # ``train_step_offline`` or ``calc_loss_offline`` differ from the online ones.
    has_offline_loss: bool = False
    # ``after_update`` looks at the info of the update, if there is an ``after_update``.
    uses_info_after_update: bool = True
    # ``should_stop_updates`` is asked after every update.
    stops_updates_early: bool = False
    # The info of ``train_step`` has the policy, see :meth:`action_distribution`.
    tells_action_distribution: bool = False
    # The attributes with child algorithms whose methods this one calls itself.
    forwarded_children: ClassVar[Sequence[str]] = ()
    # It learns from recorded steps, ``TrainerConfig.offline_buffer_dir``. Off-policy
    # they are part of its batches; on-policy it draws them with ``recorded_steps``.
    needs_recorded_steps: bool = False
    # (number, length) → Experience [number, length, ...], transformed
    recorded_steps: Callable[[int, int], Any] | None = None

    def __init__(
        self,
        *,
        train_state_spec: NestedTensorSpec = (),
        rollout_state_spec: NestedTensorSpec | None = None,
        predict_state_spec: NestedTensorSpec | None = None,
        optimizer: Optimizer | None = None,
        checkpoint: str | None = None,
        config: TrainerConfig | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name or type(self).__name__, optimizer)
        if torch.get_default_dtype() != torch.float32:
            raise ConfigError(
                f"{self._name} computes in float32, while torch's default is "
                f"{torch.get_default_dtype()}. Call "
                "torch.set_default_dtype(torch.float32), and leave it so in training."
            )
        if rollout_state_spec is None:
            rollout_state_spec = train_state_spec
        if predict_state_spec is None:
            predict_state_spec = rollout_state_spec
        self._train_state_spec = train_state_spec
        self._rollout_state_spec = rollout_state_spec
        self._predict_state_spec = predict_state_spec
        self._checkpoint = checkpoint
        self._config: Any = config  # TrainerConfig, in the algorithm that trains
        self._device: torch.device | None = None
        self._update_guard: UpdateGuard | None = None  # once it is needed

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for method, flag, value in _METHODS_WITH_FLAG:
            says_it = flag in vars(cls) or getattr(cls, flag) is value
            if method in vars(cls) and not says_it:
                raise ConfigError(
                    f"{cls.__name__}.{method} would never be called: set the class "
                    f"attribute {flag} = {value}"
                )

    @property
    def name(self) -> str:
        return self._name

    @property
    def config(self) -> Any:
        """The TrainerConfig of the run; None in what is only a part of its root."""
        return self._config

    @property
    def train_state_spec(self) -> NestedTensorSpec:
        return self._train_state_spec

    @property
    def rollout_state_spec(self) -> NestedTensorSpec:
        return self._rollout_state_spec

    @property
    def predict_state_spec(self) -> NestedTensorSpec:
        return self._predict_state_spec

    @property
    def device(self) -> torch.device:
        """Where the parameters are; the CPU if there are none."""
        if self._device is None:  # looking for them takes long, asked at every step
            parameter = next(self.parameters(), None)
            if parameter is None:
                return torch.device("cpu")
            self._device = parameter.device
        return self._device

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> nn.Module:
        # Moving to another device.
        self._device = self._update_guard = None
        return super()._apply(fn, recurse)

    def get_initial_train_state(self, batch_size: int) -> Nest:
        """Zeros [B, ...]."""
        return self._zeros(self._train_state_spec, batch_size)

    def get_initial_rollout_state(self, batch_size: int) -> Nest:
        """Zeros [B, ...]."""
        return self._zeros(self._rollout_state_spec, batch_size)

    def get_initial_predict_state(self, batch_size: int) -> Nest:
        """Zeros [B, ...]."""
        return self._zeros(self._predict_state_spec, batch_size)

    def _zeros(self, specs: NestedTensorSpec, batch_size: int) -> Nest:
        if nest.is_empty(specs):
            return specs
        device = self.device
        return nest.map_structure(lambda s: s.zeros((batch_size,), device), specs)

    @property
    def trains_on_sequences(self) -> bool:
        """Whether ``train_step`` does, see :func:`takes_whole_sequences`."""
        steps = self.train_step, self.train_step_offline
        return all(map(says_that_it_takes_them, steps))

    @property
    def is_temporally_independent(self) -> bool:
        """Whether ``train_step`` takes all steps of a batch in one call."""
        config = self._config
        if config is not None and config.temporally_independent_train_step is not None:
            return config.temporally_independent_train_step
        return nest.is_empty(self._train_state_spec)

    # The contract

    def predict_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """Acts for evaluation. inputs [B, ...]; by default as ``rollout_step``."""
        return self.rollout_step(inputs, state)

    def rollout_step(self, inputs: TimeStep, state: Nest) -> AlgStep:
        """Acts for training.

        Args:
            inputs: [B, ...].
            state: [B, ...], zeros where the step is FIRST.

        Returns:
            The action, the next state, and as info what later training needs: what
            ``train_step`` must find or, if the algorithm has no ``train_step``, what
            ``calc_loss`` needs, with gradient.
        """
        raise NotImplementedError(f"{type(self).__name__} has no rollout_step")

    def preprocess_experience(
        self, root_inputs: TimeStep, rollout_info: Nest, batch_info: BatchInfo
    ) -> tuple[TimeStep, Nest]:
        """Prepares a whole batch once, before its updates, without gradient.

        Args:
            root_inputs: [B, T, ...].
            rollout_info: [B, T, ...]; its structure may be changed.
            batch_info: where the rows come from; empty fields if from an unroll.
        """
        return root_inputs, rollout_info

    def train_step(self, inputs: TimeStep, state: Nest, rollout_info: Nest) -> AlgStep:
        """One training step on stored experience.

        Called once with [T·B, ...] if ``train_state_spec`` is empty, else T times with
        [B, ...]; or once with [T·B, ...] and states [B, ...], if it says that it
        :func:`takes_whole_sequences`. The returned info goes to ``calc_loss``; the
        output is not used.
        """
        raise NotImplementedError(f"{type(self).__name__} has no train_step")

    def calc_loss(self, info: Nest) -> LossInfo:
        """The loss of every step, [T, B] or, without its last row, [T-1, B].

        Args:
            info: [T, B, ...], from ``train_step`` (from ``rollout_step`` if there is
                no ``train_step``). The last row of an unroll only bootstraps; a loss
                given for it is not used.
        """
        raise NotImplementedError(f"{type(self).__name__} has no calc_loss")

    def action_distribution(self, info: Nest) -> Nest:
        """π(·|s_t) [T, B, ...] in the info of ``train_step``.

        Asked only if ``tells_action_distribution``.
        """
        return info.action_distribution

    def add_batch_statistics(self, rollout_infos: Sequence[Nest]) -> Sequence[Nest]:
        """Adds to the infos of mini-batches what takes all steps of each.

        Called where a loss sees only a part of its mini-batch: before it is cut in
        parts by ``TrainerConfig.gradient_accumulation``, and with several ranks, for
        many mini-batches at once, so that the ranks meet once for all.

        Args:
            rollout_infos: [T, B, ...] each.

        Returns:
            As many; one to which nothing is added is the same object.
        """
        return rollout_infos

    @quick
    def quick_loss(self, batch: Any) -> tuple[LossInfo, Nest] | None:
        """The mean loss of a mini-batch in one go, where that takes less time.

        It must be what ``train_step`` and ``calc_loss`` give, as must its gradient. Of
        what alf_lite ships, it is in :mod:`alf_lite.fast`.

        Args:
            batch: :class:`TrainingBatch` [T, B, ...], without memory and burn-in.

        Returns:
            ``loss`` [], with the info and the ``extra`` of the two if diagnostics are
            due, else (); the info is () where no method reads it. None: compute it by
            ``train_step`` and ``calc_loss``.
        """
        return None

    @takes_whole_sequences
    def train_step_offline(
        self, inputs: TimeStep, state: Nest, rollout_info: Nest
    ) -> AlgStep:
        """As ``train_step``, for the offline part of hybrid training."""
        return self.train_step(inputs, state, rollout_info)

    def calc_loss_offline(self, info: Nest) -> LossInfo:
        """As ``calc_loss``, for the offline part of hybrid training."""
        return self.calc_loss(info)

    def after_update(self, root_inputs: TimeStep, info: Nest) -> None:
        """Called after every gradient step, [T, B, ...]: target networks go here."""

    def after_train_iter(self, root_inputs: TimeStep, rollout_info: Nest) -> None:
        """Called once per iteration that unrolled, with the unroll [T, B, ...]."""

    def should_stop_updates(self, loss_info: LossInfo, valid: Tensor) -> bool | Tensor:
        """Whether to skip the remaining updates; asked if ``stops_updates_early``.

        Args:
            loss_info: of the update, with ``loss`` [] and ``extra`` [T, B].
            valid: [T, B] bool, the steps that counted.

        Returns:
            A bool, or [] bool, for which the host waits on a GPU.
        """
        return False

    # Updates on a GPU, which nobody waits for

    @property
    def update_guard(self) -> UpdateGuard | None:
        """Keeps updates that diverge from the parameters.

        None on the CPU, where the host looks at each.
        """
        if self._update_guard is None and self.device.type != "cpu":
            config = self._config
            self._update_guard = UpdateGuard(
                self.device,
                checks_finite=config is None or config.check_finite,
                interval=100 if config is None else config.check_finite_interval,
            )
        return self._update_guard

    def raise_late_errors(self) -> None:
        """Waits for a GPU and raises what has been found there, and not told yet.

        Asked before checkpoints are written and numbers are recorded.

        Raises:
            DivergedError: if an update was not finite.
            EnvError: if a batch for statistics was not.
        """
        for module in self.modules():
            if isinstance(module, Algorithm) and module._update_guard is not None:
                module._update_guard.look(module.name)
            elif isinstance(module, Normalizer):
                try:
                    module.raise_late_errors()
                except NotFiniteError as error:
                    raise EnvError(f"{self._name}: statistics got {error}") from error

    # Children

    def trains_child(self, path: str) -> bool:
        """Whether somebody calls the methods of the child at this dotted path."""
        return path.split(".")[0] in self.forwarded_children

    def check_children(self) -> None:
        """Refuses child algorithms that nobody trains, here and further down.

        Raises:
            ConfigError: naming the first one.
        """
        for path, child in _children(self):
            if not self.trains_child(path):
                attribute = path.split(".")[0]
                raise ConfigError(
                    f"{self._name}: nobody trains its child algorithm {path} "
                    f"({type(child).__name__}). Make it a part of a Composition, such "
                    "as Agent, which calls its methods; or call those that are needed "
                    f"and say so: forwarded_children = ({attribute!r},)"
                )
            child.check_children()

    def setup_training(self, *, is_resumed: bool = False) -> None:
        """Assigns the optimizers and loads the parts named by ``checkpoint``.

        Called once before training; a second call does nothing.

        Args:
            is_resumed: the parts come with the checkpoint of the run itself, which
                does not need those that it began with any more.
        """
        if self._optimizers is not None:
            return
        self.check_children()
        self.optimizers()
        for module in self.modules():
            if isinstance(module, Algorithm):
                module.check_optimizers()
        if not is_resumed:
            self.load_checkpoint_parts()

    def load_checkpoint_parts(self) -> None:
        """Loads ``checkpoint="prefix@path"`` of this algorithm and of its children."""
        for path, module in self.named_modules():
            if isinstance(module, Algorithm):
                module._load_own_checkpoints(path or type(module).__name__)

    def _load_own_checkpoints(self, name: str) -> None:
        """``checkpoint``, for a module that is called ``name`` in messages."""
        if self._checkpoint:
            part = checkpoints.load_prefix(self._checkpoint)
            load_module_state(self, part, f"{name} from {self._checkpoint}")


def _children(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Algorithm]]:
    """The nearest algorithms below a module, with their dotted paths."""
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        if isinstance(child, Algorithm):
            yield path, child
        else:
            yield from _children(child, f"{path}.")


def valid_steps(step_type: Tensor) -> Tensor:
    """Whether the step has a transition: bool, False where LAST. Any shape."""
    return step_type.ne(int(StepType.LAST))
