"""Several processes that train one run together, as torchrun starts them: *ranks*.

``ranks`` is the object of this process. Alone, which is the usual case, its size is 1,
and what it is asked for is what this process has. Otherwise every rank must ask for the
same things in the same order: a rank that does not ask has all others wait.

The collectives are those of ``torch.distributed``: gloo on the CPU, nccl on GPUs. What
travels is tensors and JSON; nothing is pickled.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from alf_lite.errors import ConfigError, WorkerError
from alf_lite.utils.random_state import derive_seed

# What torchrun sets in the environment of every rank.
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# A rank that has died is noticed at once; this is for one that hangs. Long enough for
# an evaluation by the first rank, which the others wait for.
_TIMEOUT = datetime.timedelta(hours=2)
# Numbers in a tensor, up to which latency is most of what a sum costs.
_MAX_SIZE_OF_PAIRS = 1_000_000
_MESSAGE_KEY = "message"


def started_as_rank() -> bool:
    """Whether torchrun, or what sets the same variables, has started several ranks."""
    is_complete = all(os.environ.get(name) for name in _VARIABLES)
    return is_complete and os.environ["WORLD_SIZE"] not in ("0", "1")


class RankLostError(WorkerError):
    """Another rank has ended, so that this one cannot go on."""


class Ranks:
    """The ranks of a run, seen from one of them.

    Attributes:
        index: of this rank, from 0.
        size: how many there are.
        collectives: how many there were, as this one counts them.
        seconds: that this one has spent in them, waiting included.
    """

    def __init__(self) -> None:
        self.index = 0
        self.size = 1
        self.collectives = 0
        self.seconds = 0.0
        self._store: Any = None
        self._stays_alone = False

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes what the whole run writes."""
        return self.index == 0

    def join(self) -> None:
        """Meets the other ranks, if torchrun has started this process beside others.

        A second call does nothing, and so do processes that a rank has started.

        Raises:
            RankLostError: if the others do not come.
            ConfigError: if torch is without its distributed package.
        """
        if self.size > 1 or self._stays_alone or not started_as_rank():
            return
        distributed = torch.distributed
        if not distributed.is_available():
            raise ConfigError(
                "torchrun has started several processes, but this torch is built "
                "without torch.distributed. Install another build, or train with one."
            )
        if not distributed.is_initialized():
            _settle_on_cores()
            has_nccl = torch.cuda.is_available() and distributed.is_nccl_available()
            with self._together():
                self._connect()
                distributed.init_process_group(
                    "cpu:gloo,cuda:nccl" if has_nccl else "gloo",
                    store=distributed.PrefixStore("group", self._store),
                    rank=int(os.environ["RANK"]),
                    world_size=int(os.environ["WORLD_SIZE"]),
                    timeout=_TIMEOUT,
                )
        self.index = distributed.get_rank()
        self.size = distributed.get_world_size()

    def stay_alone(self) -> None:
        """This process is what a rank has started, whose variables it may have."""
        self._stays_alone = True

    def _connect(self) -> None:
        if self._store is not None:
            return
        store, *_ = next(torch.distributed.rendezvous("env://"))
        # It outlives the ranks, and what those before a restart have left there.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        prefix = f"alf_lite/{attempt}"
        self._store = torch.distributed.PrefixStore(prefix, store)

    def leave(self) -> None:
        """Parts from the others, at the end of the process."""
        if self.size > 1:
            with contextlib.suppress(RuntimeError):
                torch.distributed.destroy_process_group()
        self.index, self.size = 0, 1

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """In the block this process asks nobody, as in an evaluation by one rank."""
        size, self.size = self.size, 1
        try:
            yield
        finally:
            self.size = size

    def speaks_first(self) -> bool:
        """Whether nobody else has told the user yet what ends the run."""
        if not started_as_rank():
            return True
        try:
            self._connect()
            return self._store.add(_MESSAGE_KEY, 1) == 1
        except (RuntimeError, ValueError):  # whoever keeps it has ended
            return True

    # What is a rank's own share

    def share_of(self, total: int, what: str) -> int:
        """This rank's share of a number that is given for the whole run.

        Args:
            total: of all ranks together.
            what: its name, for the message.

        Raises:
            ConfigError: if it cannot be divided.
        """
        if total % self.size:
            near = max(1, round(total / self.size)) * self.size
            raise ConfigError(
                f"{what} is {total}, which is of the whole run and cannot be divided "
                f"by its {self.size} ranks. Take {near}, or another number of ranks "
                "(torchrun --nproc_per_node)."
            )
        return total // self.size

    def seed_of(self, seed: int) -> int:
        """This rank's seed in a run with that seed; the first one has the same."""
        return seed if self.is_first else derive_seed(seed, "rank", self.index)

    # Collectives

    def sum_(self, tensor: Tensor) -> Tensor:
        """Adds the tensors of all ranks, in place."""
        if self.size > 1:
            is_small = tensor.is_cpu and tensor.numel() <= _MAX_SIZE_OF_PAIRS
            is_power_of_two = self.size & (self.size - 1) == 0
            with self._together():
                if is_small and is_power_of_two:
                    self._sum_by_pairs(tensor)
                else:
                    torch.distributed.all_reduce(tensor)
        return tensor

    def _sum_by_pairs(self, tensor: Tensor) -> None:
        """The same for a contiguous tensor on the CPU, with half of gloo's CPU time.

        In round k every rank adds the sums of 2**k ranks, its own and those of the one
        whose index differs in bit k. As a + b is b + a, all have the same bits.
        """
        other = torch.empty_like(tensor)
        for k in range(self.size.bit_length() - 1):
            partner = self.index ^ (1 << k)
            requests = (
                torch.distributed.irecv(other, partner),
                torch.distributed.isend(tensor, partner),
            )
            for request in requests:
                assert request is not None, "the partner is another rank"
                request.wait()
            tensor.add_(other)

    def total(self, *numbers: float) -> list[float]:
        """The sums of these numbers over all ranks, exact up to 2**53."""
        if self.size == 1:
            return list(numbers)
        return self.sum_(torch.tensor(numbers, dtype=torch.float64)).tolist()

    def any(self, condition: bool) -> bool:
        """Whether it holds for one rank at least."""
        return condition if self.size == 1 else self.total(condition)[0] > 0

    def all(self, condition: bool) -> bool:
        """Whether it holds for all ranks."""
        return condition if self.size == 1 else self.total(condition)[0] == self.size

    def least(self, number: float | Tensor) -> float | Tensor:
        """The smallest one of all ranks; a tensor [] stays on its device."""
        if self.size == 1:
            return number
        if isinstance(number, Tensor):
            return self.gather(number).amin()
        return float(self.gather(torch.tensor(number, dtype=torch.float64)).min())

    def gather(self, tensor: Tensor) -> Tensor:
        """[size, ...], the tensors of all ranks, which have one shape and dtype."""
        if self.size == 1:
            return tensor.unsqueeze(0)
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        with self._together():
            torch.distributed.all_gather(parts, tensor.contiguous())
        return torch.stack(parts)

    @torch.no_grad()
    def broadcast_(self, tensors: Iterable[Tensor], source: int = 0) -> None:
        """Overwrites the tensors with those of rank ``source``."""
        if self.size == 1:
            return
        for tensor in tensors:
            # Neither a view nor a scalar bool is what a backend expects.
            copy = tensor.detach().clone().contiguous()
            copy = copy.to(torch.uint8) if copy.dtype == torch.bool else copy
            with self._together():
                torch.distributed.broadcast(copy, source)
            tensor.copy_(copy)

    def broadcast_data(self, data: Any, source: int = 0) -> Any:
        """The JSON data of rank ``source``."""
        if self.size == 1:
            return data
        text = bytearray(json.dumps(data).encode())
        size = torch.tensor(len(text))
        self.broadcast_([size], source)
        if self.index != source:
            text = bytearray(int(size))
        letters = torch.frombuffer(text, dtype=torch.uint8)
        self.broadcast_([letters], source)
        return json.loads(bytes(letters.numpy()))

    def differing(self, digest: bytes) -> Sequence[int]:
        """The ranks whose digest, of a fixed length, is not that of the first one."""
        digests = self.gather(torch.frombuffer(bytearray(digest), dtype=torch.uint8))
        return (digests != digests[0]).any(1).nonzero().flatten().tolist()

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            said, seconds = str(error).splitlines()[0], _TIMEOUT.total_seconds()
            if time.perf_counter() - begin >= seconds:
                raise RankLostError(
                    f"another rank has not answered for {seconds / 3600:g} hours: it "
                    "hangs, or evaluates for longer. Set TrainerConfig.async_eval = "
                    f"True, or lower num_eval_episodes. All ranks end. ({said})"
                ) from error
            raise RankLostError(
                "another rank has ended, or cannot be reached: what it says about it "
                "is above, unless it was killed. All ranks end; torchrun "
                f"--max-restarts=N has them go on from the last checkpoint. ({said})"
            ) from error
        finally:
            self.collectives += 1
            self.seconds += time.perf_counter() - begin


def _settle_on_cores() -> None:
    """Keeps ranks on one machine out of each other's way, where Linux can do so.

    For this thread, and those that it starts from now on. Every rank has its share of
    the cores: else that which answers is started on the core of that which asks. And no
    thread interrupts another: one of gloo's would spin for the lock of that which it
    has interrupted, up to the end of its time slice, 3 ms instead of 0.3.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return
    size = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    index = int(os.environ.get("LOCAL_RANK") or 0)
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):  # not allowed, in some containers
        if 1 < size <= len(cores):
            begin, end = (len(cores) * k // size for k in (index, index + 1))
            os.sched_setaffinity(0, cores[begin:end])
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


ranks = Ranks()  # of this process


# What all ranks have seen, put together


class SharedStatistics(nn.Module):
    """A module with statistics that are those of all ranks.

    With several ranks it only collects what is new, and takes in that of all when
    :func:`share_statistics` is called, at the same point of every rank. So it does not
    matter how often, or whether, a rank has seen something new.
    """

    @abstractmethod
    def take_pending(self) -> Tensor:
        """[K] float64, what is new here since the last call; K never changes."""

    @abstractmethod
    def take_in(self, pending: Tensor) -> None:
        """Takes in what is new on all ranks, [size, K]."""


def sharing_modules(module: nn.Module) -> list[SharedStatistics]:
    """Those below ``module``, in an order that is the same on all ranks."""
    return [part for part in module.modules() if isinstance(part, SharedStatistics)]


def share_statistics(modules: Iterable[SharedStatistics]) -> None:
    """Has the modules take in what is new on any rank, in one collective."""
    modules = list(modules)
    if ranks.size == 1 or not modules:
        return
    pending = [module.take_pending().cpu() for module in modules]
    sizes = [len(part) for part in pending]
    gathered = ranks.gather(torch.cat(pending)).split(sizes, dim=1)
    for module, parts in zip(modules, gathered, strict=True):
        module.take_in(parts)
