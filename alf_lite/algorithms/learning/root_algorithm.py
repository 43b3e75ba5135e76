"""What the paths of training know of the algorithm that they train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from alf_lite.algorithms.learning.training_batches import TrainingBatch
from alf_lite.data_structures import BatchInfo, Experience, LossInfo, TimeStep
from alf_lite.data_transformers.data_transformer import DataTransformer
from alf_lite.tensor_specs import NestedTensorSpec

Nest = Any


class RootAlgorithm(Protocol):
    """The part of ``RLAlgorithm`` that a path calls; its docstrings are there."""

    data_transformer: DataTransformer
    num_bootstrap_steps: int

    @property
    def device(self) -> torch.device: ...

    @property
    def train_state_spec(self) -> NestedTensorSpec: ...

    @property
    def unrolls_with_grad(self) -> bool: ...

    @property
    def trains_offline_differently(self) -> bool: ...

    def set_training(self, mode: bool) -> None: ...

    def unroll(self, unroll_length: int) -> Experience: ...

    def unroll_what_is_there(
        self, at_least: int, at_most: int
    ) -> Experience | None: ...

    def preprocess(
        self, experience: Experience, valid: Tensor, batch_info: BatchInfo
    ) -> TrainingBatch: ...

    def train_from_unroll(self, experience: Experience, train_info: Nest) -> int: ...

    def train_from_replay_buffer(self, *, with_own_steps: bool) -> int: ...

    def calc_loss(self, info: Nest) -> LossInfo: ...

    def aggregate_loss(self, loss_info: LossInfo, valid: Tensor) -> LossInfo: ...

    def update_with_gradient(
        self, loss_info: LossInfo, explain: Callable[[], LossInfo] | None = None
    ) -> list[Tensor]: ...

    def after_update(self, root_inputs: TimeStep, info: Nest) -> None: ...

    def after_train_iter(self, root_inputs: TimeStep, rollout_info: Nest) -> None: ...

    def summarize_loss(self, loss_info: LossInfo, valid: Tensor) -> None: ...

    def summarize_optimizers(self, gradient_norms: list[Tensor]) -> None: ...
