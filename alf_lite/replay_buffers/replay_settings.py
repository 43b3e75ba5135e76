"""What a conf says about training from a replay buffer, and what that needs of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from alf_lite.config import DefaultSettings, TrainerConfig, rules
from alf_lite.config.bindings import call_with_defaults
from alf_lite.errors import ConfigError
from alf_lite.replay_buffers.allocation import StorageOptions
from alf_lite.replay_buffers.priority_options import PriorityOptions, check_options
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.window_sampler import SamplingOptions, all_windows

_DRAW_LESS = (
    "Lower TrainerConfig.mini_batch_size, updates_per_draw or "
    "num_updates_per_train_iter"
)


class ReplayOptions:
    """The options of the buffer, read before it is known what is stored.

    Args:
        config: of the run.
        declared: by the algorithm.

    Raises:
        ConfigError: if they contradict each other or the config.
    """

    def __init__(self, config: TrainerConfig, declared: DefaultSettings) -> None:
        self._config = config
        self.storage = StorageOptions()
        self.sampling = SamplingOptions()
        self.priority: PriorityOptions | None = None
        if config.priority_replay:
            exponents = {
                "alpha": declared.priority_alpha,
                "beta": declared.priority_beta,
            }
            self.priority = call_with_defaults(PriorityOptions, exponents)
        try:
            check_options(self.sampling, self.priority)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if self.sampling.recent_data_ratio and (config.updates_per_draw or 1) > 1:
            raise ConfigError(
                f"TrainerConfig.updates_per_draw={config.updates_per_draw}: with "
                "SamplingOptions.recent_data_ratio every update has newest steps of "
                "its own. Leave updates_per_draw out."
            )
        if config.whole_replay_buffer_training and self.sampling != all_windows():
            raise ConfigError(
                "SamplingOptions have no effect with "
                "TrainerConfig.whole_replay_buffer_training, which takes everything: "
                "set one of them"
            )
        self.directory: str | None = None
        if self.storage.storage == "memmap":
            self.directory = self.storage.directory or config.root_dir
            if not self.directory:
                raise ConfigError(
                    "StorageOptions.storage is 'memmap', but nothing says where the "
                    "file shall be: set StorageOptions.directory, or "
                    "TrainerConfig.root_dir"
                )

    def draws_per_iteration(self) -> tuple[int, int]:
        """For how many updates windows are drawn at once, and how often.

        With priorities each update knows what the one before has learned, unless the
        config says otherwise, and of the newest steps each has its part; without,
        drawing all at once is faster.
        """
        config = self._config
        num_updates = config.num_updates
        draws_for_each = config.priority_replay or self.sampling.recent_data_ratio > 0
        at_once = config.updates_per_draw or (1 if draws_for_each else num_updates)
        at_once = min(at_once, num_updates)
        return at_once, math.ceil(num_updates / at_once)

    def check_batches(self, num_environments: int, num_history_steps: int) -> None:
        """Checks that the own buffer can ever have the windows of a batch.

        Training waits until they are there, which shall not be for ever.

        Args:
            num_environments: E.
            num_history_steps: of the data transformer.

        Raises:
            ConfigError: if it cannot.
        """
        config, sampling = self._config, self.sampling
        plain = all_windows()
        if (sampling.with_replacement, sampling.max_use) == (True, None):
            return
        assert config.mini_batch_length is not None, "checked before"
        at_once, num_batches = self.draws_per_iteration()
        needed = windows_per_update(config, num_environments)[0] * at_once
        if sampling.max_use is not None:
            needed *= num_batches
        without_successor = config.mini_batch_length - 1
        stored = config.replay_buffer_length - num_history_steps - without_successor
        limit = f"replay_buffer_length={config.replay_buffer_length}"
        fresh = config.unroll_length * ((sampling.max_staleness or 0) + 1)
        if sampling.max_staleness is not None and config.unroll_length:
            fresh = max(0, math.ceil(fresh) - without_successor)
            if fresh < stored:
                limit = f"max_staleness={sampling.max_staleness}"
                stored = fresh
        available = num_environments * stored
        if sampling.with_replacement:
            available *= sampling.max_use or 1
        if needed > available:
            what = ", ".join(
                f"SamplingOptions.{name}={getattr(sampling, name)}"
                for name in ("with_replacement", "max_use")
                if getattr(sampling, name) != getattr(plain, name)
            )
            raise ConfigError(
                f"{what}: {needed} windows are needed at once, but with {limit} there "
                f"are never more than {available}. {_DRAW_LESS}, or raise that limit."
            )
        num_recent = math.ceil(needed * sampling.recent_data_ratio)
        recent = sampling.recent_data_steps * num_environments
        if not sampling.with_replacement and num_recent > recent:
            raise ConfigError(
                f"SamplingOptions.recent_data_ratio={sampling.recent_data_ratio}: "
                f"{num_recent} different ones of the newest steps are drawn at once, "
                f"but recent_data_steps={sampling.recent_data_steps} of "
                f"{num_environments} environments are only {recent}. Raise "
                "recent_data_steps, or draw with replacement."
            )

    def check_batches_of_source(
        self, buffer: ReplayBuffer, index: int, num_environments: int
    ) -> None:
        """Checks that an offline source has the windows of a batch.

        Args:
            buffer: with its steps.
            index: which source it is, from 1.
            num_environments: of the run.

        Raises:
            ConfigError: if it has not.
        """
        config = self._config
        if self.sampling.with_replacement:
            return
        assert config.mini_batch_length is not None, "checked before"
        without_own = (
            config.rl_train_after_update_steps > 0
            or config.rl_train_every_update_steps > 1
        )
        counts = windows_per_update(config, num_environments, with_own=not without_own)
        per_update = counts[index]
        needed = per_update * self.draws_per_iteration()[0]
        there = buffer.num_windows(config.mini_batch_length)
        if needed > there:
            raise ConfigError(
                "SamplingOptions.with_replacement=False: "
                f"{config.offline_sources[index - 1]} has {there} windows, but "
                f"{needed} different ones are drawn at once. {_DRAW_LESS}, or draw "
                "with replacement."
            )

    def apply_to_recorded_steps(self, buffer: ReplayBuffer) -> None:
        """Has windows of an offline source drawn as the run's own ones.

        Recorded steps have no age and are not replaced: what makes room for newer
        steps is for a run's own ones, and refused if these are not trained.

        Raises:
            ConfigError: naming the options that cannot be for recorded steps.
        """
        plain, sampling = all_windows(), self.sampling
        if sampling.max_use is not None:
            raise ConfigError(
                f"SamplingOptions.max_use={sampling.max_use} cannot be with offline "
                "data, which would be used up: leave it out, or limit how long the "
                "run trains (TrainerConfig.num_iterations)"
            )
        ages = ("recent_data_ratio", "recent_data_steps", "max_staleness")
        of_own_steps = [
            f"SamplingOptions.{name}={getattr(sampling, name)}"
            for name in ages
            if getattr(sampling, name) != getattr(plain, name)
        ]
        if of_own_steps and not _trains_own_steps(self._config):
            raise ConfigError(
                f"{', '.join(of_own_steps)}: recorded steps have no age, and this run "
                "trains on no steps of its own. Leave it out."
            )
        if self.priority is not None and self.priority.normalization == "buffer":
            raise ConfigError(
                "PriorityOptions.normalization='buffer' scales every source on its "
                "own, so that batches of own steps and offline data would not have "
                "their TrainerConfig.mixing_ratios: take 'batch' or 'none'"
            )
        timeless = dataclasses.replace(
            sampling, **{name: getattr(plain, name) for name in ages}
        )
        if self.priority is not None or timeless != plain:
            buffer.sample_by(timeless, self.priority)


def windows_per_update(
    config: TrainerConfig, num_environments: int, *, with_own: bool = True
) -> list[int]:
    """Those of own steps, then those of each of ``offline_buffer_dir``."""
    num_windows = config.mini_batch_size or num_environments
    ratios = list(config.mixing_ratios or default_ratios(len(config.offline_sources)))
    if not with_own:
        ratios[0] = 0.0
    return shares(num_windows, ratios)


def shares(total: int, ratios: Sequence[float]) -> list[int]:
    """``total`` divided in proportion to ``ratios``, by the largest remainders.

    Every source gets the whole part of its share; what is left goes to the largest
    fractional parts, one each, earlier sources first among equals.

    Args:
        total: at least 0.
        ratios: at least 0 each, in any unit.

    Returns:
        One number for each ratio; their sum is ``total``.

    Raises:
        ValueError: if a ratio is negative or not finite, or all are zero.
    """
    whole = sum(ratios)
    if not all(math.isfinite(r) and r >= 0 for r in ratios) or whole <= 0:
        raise ValueError(
            "ratios must be finite numbers of at least 0 that are not all 0, got "
            f"{list(ratios)}"
        )
    # Rounded, so that 3 · (1/3) is no remainder.
    exact = [round(total * ratio / whole, 9) for ratio in ratios]
    counts = [math.floor(share) for share in exact]
    order = sorted(range(len(ratios)), key=lambda i: counts[i] - exact[i])
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts


def default_ratios(num_offline: int) -> list[float]:
    """Half own steps, the other half alike; all own steps if there are no others."""
    if not num_offline:
        return [1.0]
    return [0.5, *(0.5 / num_offline for _ in range(num_offline))]


def _trains_own_steps(config: TrainerConfig) -> bool:
    if config.mixing_ratios is not None and config.mixing_ratios[0] == 0:
        return False
    num_iterations = config.num_iterations
    return not 0 < num_iterations <= config.rl_train_after_update_steps


def check_replay_settings(
    config: TrainerConfig, num_environments: int, num_history_steps: int
) -> None:
    """Checks what training from a replay buffer needs of the settings.

    Args:
        config: of the run.
        num_environments: E.
        num_history_steps: of the data transformer.

    Raises:
        ConfigError: if the length of a window is not set, or the buffer is too short
            for a window or for the steps to collect, or a batch too small for a
            source.
    """
    ratios = config.mixing_ratios or default_ratios(len(config.offline_sources))
    counts = windows_per_update(config, num_environments)
    names = ("own steps", *config.offline_sources)
    rules.check(
        config,
        "replay",
        num_environments=num_environments,
        num_history_steps=num_history_steps,
        windows=dict(zip(names, zip(ratios, counts, strict=True), strict=True)),
    )
