"""What the process of one environment is told."""

from __future__ import annotations

from typing import NamedTuple


class WorkerSettings(NamedTuple):
    """What the process of one environment must know. Plain data, as it is pickled."""

    env_index: int  # of the environment in its batch
    num_envs: int
    factory: bytes  # see env_factory.dump_factory
    info_keys: dict[str, tuple[int, ...]]  # InfoKeys.declared
    seed: int | None
    parent_pid: int
    dies_with_parent: bool  # through the operating system, not only through the pipe
