"""What all metrics are computed from: the episodes in the unrolls of environments."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from alf_lite import nest
from alf_lite.data_structures import TimeStep
from alf_lite.errors import CheckpointError
from alf_lite.metrics.episode_sums import EpisodeSums, FinishedEpisodes, RecentRows
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from alf_lite.utils.recurrences import linear_scan
from alf_lite.utils.unroll_arrays import UnrollArrays, UnrollReader, join

Nest = Any

# Short unrolls are looked at together, when so many steps have come. How many are does
# not depend on when somebody asks: it decides on the last bits of the sums.
_MAX_WAITING_STEPS = 64


class EpisodeMeans(NamedTuple):
    """Means over the recorded episodes; NaN while there is none.

    In an episode of length L, step 0 is FIRST and step L is LAST. With the discount d
    of the environment, the discounted return from step t is

        G_t = r_{t+1} + γ d_{t+1} G_{t+1},   G_L = 0
    """

    length: np.ndarray  # [], L
    episode_return: np.ndarray  # [*reward shape], Σ_{t=1}^{L} r_t
    discounted_return: np.ndarray  # [*reward shape], (1/L) Σ_{t=0}^{L-1} G_t
    reward: np.ndarray  # [*reward shape], (1/L) Σ_{t=1}^{L} r_t
    start_discounted_return: np.ndarray  # [*reward shape], G_0
    info_mean: Nest  # as env_info_spec, (1/L) Σ_{t=1}^{L} info_t
    info_last: Nest  # as env_info_spec, info_L


class _Records:
    """The sums of the open episodes, and the last ones that have ended."""

    def __init__(
        self, reward_size: int, info_size: int, batch_size: int, buffer_size: int
    ) -> None:
        # The sums of an episode: its steps, the rewards, the rewards with each of the
        # two weights of arrival_weights, the env_info.
        self.sum_sizes = [1, *[reward_size] * 3, info_size]
        self.sums = EpisodeSums(batch_size, sum(self.sum_sizes))
        # A recorded episode: what EpisodeMeans is the mean of.
        self.record_sizes = [1, *[reward_size] * 4, info_size, info_size]
        self.recorded = RecentRows(buffer_size, sum(self.record_sizes))
        self.next_weights = np.zeros((batch_size, 2))  # of the next reward to arrive

    def add(self, steps: UnrollArrays, gamma: float) -> None:
        """Takes in the steps of an unroll."""
        weights = self._arrival_weights(steps, gamma)
        values = np.concatenate(
            (
                np.ones((*steps.is_first.shape, 1)),
                steps.rewards,
                weights[..., :1] * steps.rewards,
                weights[..., 1:] * steps.rewards,
                steps.infos,
            ),
            axis=2,
        )
        values[steps.is_first] = 0.0
        finished = self.sums.add(steps.is_first, steps.is_last, values, steps.env_ids)
        if len(finished.sums):
            self._record(finished, steps.infos[finished.last_step, finished.column])

    def _arrival_weights(self, steps: UnrollArrays, gamma: float) -> np.ndarray:
        """How often the reward of each step counts in sums of discounted returns.

        In Σ_t G_t the reward r_t counts q_t times, in G_0 it counts p_t times:

            q_{t+1} = 1 + γ d_t q_t,   p_{t+1} = γ d_t p_t,   q_1 = p_1 = 1

        Returns:
            [T, B, 2], q and p of every step; anything at FIRST.
        """
        is_first = steps.is_first[..., None]
        decay = np.where(is_first, 0.0, gamma * steps.discounts)
        growth = np.concatenate((np.ones(is_first.shape), is_first), axis=2)
        arriving = self.next_weights[steps.env_ids]
        following = linear_scan(growth, decay, arriving)
        self.next_weights[steps.env_ids] = following[-1]
        return np.concatenate((arriving[None], following[:-1]))

    def _record(self, finished: FinishedEpisodes, last_infos: np.ndarray) -> None:
        lengths, returns, sums_of_returns, start_returns, infos = _split(
            finished.sums, self.sum_sizes
        )
        record = (
            lengths,
            returns,
            sums_of_returns / lengths,
            returns / lengths,
            start_returns,
            infos / lengths,
            last_infos,
        )
        self.recorded.append(np.concatenate(record, axis=1))

    def clear(self) -> None:
        self.sums.drop_open()
        self.recorded.clear()
        self.next_weights[:] = 0.0

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "recorded": self.recorded.rows,
            "open_sums": self.sums.open_sums,
            "is_open": self.sums.is_open,
            "next_weights": self.next_weights,
        }


class EpisodeTracker:
    """Follows the episodes of batched environments through their unrolls.

    The means are those of the last ``buffer_size`` episodes of which both the FIRST and
    the LAST step were seen. FIRST steps are not environment steps; reward and env_info
    that come with them are ignored. All sums are float64.

    Args:
        reward_spec: of one reward.
        env_info_spec: of the env_info of one step.
        batch_size: number of environments; every ``env_id`` is below it.
        buffer_size: number of episodes that the means are taken over.
        gamma: γ of the discounted returns.
    """

    def __init__(
        self,
        reward_spec: TensorSpec,
        env_info_spec: NestedTensorSpec,
        *,
        batch_size: int,
        buffer_size: int,
        gamma: float,
    ) -> None:
        self._reward_spec = reward_spec
        self._env_info_spec = env_info_spec
        self._reader = UnrollReader(reward_spec, env_info_spec, batch_size)
        self._waiting: list[UnrollArrays] = []  # unrolls that were not looked at yet
        self._num_waiting = 0  # their steps
        self._gamma = gamma
        self._records = _Records(
            reward_spec.numel,
            sum(spec.numel for spec in nest.flatten(env_info_spec)),
            batch_size,
            buffer_size,
        )
        self._latest: _Records | None = None  # with what waits, if somebody has asked
        self._num_env_steps = 0
        self._num_episodes = 0
        # Whether the step before was LAST; saved where agents wait for others with LAST
        # steps, of which the first one ends the episode.
        self._was_last = np.zeros(batch_size, bool)
        self._some_wait = False
        # Of the other ranks, when they were last asked: their numbers of steps and of
        # episodes, and of the recorded ones the number and the sums.
        self._elsewhere = np.zeros(3 + sum(self._records.record_sizes))

    @property
    def num_env_steps(self) -> int:
        """Steps that are not FIRST, of all ranks."""
        return self._num_env_steps + int(self._elsewhere[0])

    @property
    def num_episodes(self) -> int:
        """That have ended, of all ranks."""
        return self._num_episodes + int(self._elsewhere[1])

    def shares(self) -> np.ndarray:
        """[K], what the other ranks are told of this one's episodes."""
        self._catch_up()
        recorded = self._records.recorded
        counts = (self._num_env_steps, self._num_episodes, len(recorded))
        return np.concatenate((counts, recorded.sum()))

    def take_in(self, elsewhere: np.ndarray) -> None:
        """Counts what the other ranks have seen, the sum [K] of their shares."""
        self._elsewhere = elsewhere

    def observe(self, time_step: TimeStep) -> None:
        """Takes in raw time steps [T, B, ...], each step once and in its order.

        Args:
            time_step: ``env_id`` says which environment column b is, the same for all
                T; if it is absent, environment b. ``observation`` and ``prev_action``
                are not looked at.

        Raises:
            ValueError: if shapes or ids are not as the specs say.
        """
        steps = self._reader.read(time_step)
        if steps.is_first.size == 0:
            return
        num_first = int(np.count_nonzero(steps.is_first))
        self._num_env_steps += steps.is_first.size - num_first
        was_last = np.concatenate((self._was_last[None, steps.env_ids], steps.is_last))
        waits = steps.is_last & was_last[:-1]
        self._num_episodes += int(np.count_nonzero(steps.is_last & ~waits))
        self._some_wait |= bool(waits.any())
        self._was_last[steps.env_ids] = was_last[-1]
        self._latest = None
        if self._waiting and not self._are_waiting(steps.env_ids):
            self._catch_up()
        self._waiting.append(steps)
        self._num_waiting += len(steps.is_first)
        if self._num_waiting >= _MAX_WAITING_STEPS:
            self._catch_up()

    def _are_waiting(self, env_ids: np.ndarray) -> bool:
        """Whether the steps that wait are those of the same environments."""
        waiting = self._waiting[0].env_ids
        return waiting is env_ids or np.array_equal(waiting, env_ids)

    def _catch_up(self) -> None:
        """Looks at the unrolls that wait."""
        if self._waiting:
            self._records.add(join(self._waiting), self._gamma)
            self._drop_waiting()

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self._num_waiting = 0
        self._latest = None

    def _up_to_now(self) -> _Records:
        """The records with what waits, which goes on waiting."""
        if not self._waiting:
            return self._records
        if self._latest is None:
            self._latest = copy.deepcopy(self._records)
            self._latest.add(join(self._waiting), self._gamma)
        return self._latest

    def means(self) -> EpisodeMeans:
        """The means over the recorded episodes."""
        records = self._up_to_now()
        length, *returns, info_mean, info_last = _split(
            records.recorded.mean(self._elsewhere[2], self._elsewhere[3:]),
            records.record_sizes,
        )
        shape = tuple(self._reward_spec.shape)
        total, discounted, per_step, from_start = [r.reshape(shape) for r in returns]
        return EpisodeMeans(
            length=length.reshape(()),
            episode_return=total,
            discounted_return=discounted,
            reward=per_step,
            start_discounted_return=from_start,
            info_mean=self._pack_infos(info_mean),
            info_last=self._pack_infos(info_last),
        )

    def _pack_infos(self, row: np.ndarray) -> Nest:
        specs = nest.flatten(self._env_info_spec)
        parts = _split(row, [spec.numel for spec in specs])
        return nest.pack_sequence_as(
            self._env_info_spec,
            [
                part.reshape(tuple(spec.shape))
                for part, spec in zip(parts, specs, strict=False)
            ],
        )

    def drop_open_episodes(self) -> None:
        """Forgets the episodes that have not ended, as after a reset."""
        self._catch_up()
        self._records.sums.drop_open()

    def forget_episodes(self) -> None:
        """Means are those of the episodes that end from here on."""
        self._catch_up()
        self._latest = None
        self._records.recorded.clear()

    def reset(self) -> None:
        """Forgets everything."""
        self._drop_waiting()
        self._records.clear()
        self._num_env_steps = self._num_episodes = 0
        self._was_last[:] = False
        self._elsewhere = np.zeros_like(self._elsewhere)

    def state_dict(self) -> dict[str, Any]:
        """Everything that later results depend on, as ints and tensors."""
        arrays = self._records.arrays()
        if self._some_wait:
            arrays["was_last"] = self._was_last
        return {
            "num_env_steps": self._num_env_steps,
            "num_episodes": self._num_episodes,
            "num_recorded": self._records.recorded.num_appended,
            **self._waiting_state(),
        } | {name: torch.tensor(a) for name, a in arrays.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues where ``state_dict`` was taken.

        Raises:
            CheckpointError: if entries or shapes differ; nothing has changed then.
        """
        expected = self.state_dict()
        # Older ones had looked at all.
        state_dict = {"waiting": (), "waiting_ids": (), **state_dict}
        was_last = state_dict.pop("was_last", None)
        expected.pop("was_last", None)
        if state_dict.keys() != expected.keys():
            raise CheckpointError(
                f"metrics: expected the entries {sorted(expected)}, "
                f"got {sorted(state_dict)}"
            )
        arrays = self._records.arrays()
        for name, array in arrays.items():
            saved: Tensor = state_dict[name]
            if tuple(saved.shape) != array.shape:
                raise CheckpointError(
                    f"metrics: '{name}' was saved with the shape {tuple(saved.shape)}, "
                    f"now it is {array.shape}. The number of environments, the reward, "
                    "the env_info keys and the buffer size must be those of the "
                    "saved run."
                )
        waiting = self._read_waiting(state_dict["waiting"], state_dict["waiting_ids"])
        for name, array in arrays.items():
            array[...] = state_dict[name].numpy()
        self._some_wait = was_last is not None
        self._was_last[:] = was_last if self._some_wait else False
        self._num_env_steps = int(state_dict["num_env_steps"])
        self._num_episodes = int(state_dict["num_episodes"])
        self._records.recorded.num_appended = int(state_dict["num_recorded"])
        self._drop_waiting()
        if waiting is not None:
            self._waiting, self._num_waiting = [waiting], len(waiting.is_first)

    def _waiting_state(self) -> dict[str, Tensor]:
        """The steps that wait, [T, B, fields], and their environments [B]."""
        if not self._waiting:
            rows = torch.zeros((0, 0, 0), dtype=torch.float64)
            return {"waiting": rows, "waiting_ids": torch.zeros(0, dtype=torch.int64)}
        steps = join(self._waiting)
        flags = np.stack((steps.is_first, steps.is_last), axis=2)
        fields = (flags, steps.discounts, steps.rewards, steps.infos)
        return {
            "waiting": torch.from_numpy(np.concatenate(fields, axis=2)),
            "waiting_ids": torch.tensor(steps.env_ids, dtype=torch.int64),
        }

    def _read_waiting(self, rows: Tensor, env_ids: Tensor) -> UnrollArrays | None:
        if not len(rows):
            return None
        sizes = [2, 1, self._reward_spec.numel, self._records.record_sizes[-1]]
        ids, batch_size = env_ids.tolist(), len(self._records.next_weights)
        if rows.shape[1:] != (len(ids), sum(sizes)) or not (
            set(ids) <= set(range(batch_size)) and len(set(ids)) == len(ids)
        ):
            raise CheckpointError(
                f"metrics: steps of shape {tuple(rows.shape)} were saved for the "
                f"environments {ids}, expected [T, B, {sum(sizes)}] of B different "
                f"ones below {batch_size}"
            )
        flags, discounts, rewards, infos = _split(rows.numpy(), sizes)
        is_first, is_last = (flags != 0).transpose(2, 0, 1)
        return UnrollArrays(
            is_first, is_last, discounts, rewards, infos, env_ids.numpy()
        )


def _split(columns: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Cuts the last dimension into parts of the given sizes."""
    return np.split(columns, np.cumsum(sizes)[:-1], axis=-1) if sizes else []
