"""Every global random number generator of a process: seed, save, restore.

The state is plain data (ints, floats, strings, tensors), so that it can be stored in a
checkpoint that ``torch.load(weights_only=True)`` reads.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from alf_lite.errors import CheckpointError
from alf_lite.utils.plain_data import check_like

# The bounds that every consumer of a seed accepts: NumPy takes 32 unsigned bits, some
# environments only non-negative signed ones.
MAX_SEED = 2**31 - 1


def new_seed() -> int:
    """A seed from the operating system's entropy, for runs that were given none."""
    return int.from_bytes(os.urandom(4), "little") & MAX_SEED


def derive_seed(seed: int, *keys: str | int) -> int:
    """A seed for one purpose, the same in every process and on every platform.

    ``derive_seed(seed, "evaluation", 20)`` and ``derive_seed(seed, "evaluation", 21)``
    are unrelated, as are those of neighbouring seeds.

    Args:
        seed: the seed of the run.
        *keys: what the derived seed is for.

    Returns:
        A seed in [0, ``MAX_SEED``].
    """
    words = [
        zlib.crc32(key.encode()) if isinstance(key, str) else int(key) for key in keys
    ]
    entropy = np.random.SeedSequence([seed, *words])
    return int(entropy.generate_state(1)[0]) & MAX_SEED


def seed_everything(seed: int) -> None:
    """Seeds Python's, NumPy's global and all of torch's generators."""
    seed = int(seed)  # not one of numpy's, which Python's generator refuses
    random.seed(seed)
    # Environments of other people draw from the global generator.
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
    torch.manual_seed(seed)


def force_deterministic() -> None:
    """Makes torch use deterministic algorithms only, and raise where it has none."""
    # cuBLAS reads this when its first handle is created.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def get_state() -> dict[str, Any]:
    """The state of every global generator, as data."""
    name, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": {
            "bit_generator": name,
            # uint32 has no torch arithmetic; int64 holds every value.
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached_gaussian": float(cached),
        },
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def check_state(state: Any, what: str) -> None:
    """Checks that :func:`set_state` can restore ``state``; changes no generator.

    Args:
        state: as it was read from a file.
        what: for errors.

    Raises:
        CheckpointError: naming the generator.
    """
    for name, example in get_state().items():
        if name not in ("python", "cuda"):
            found = state.get(name) if isinstance(state, dict) else None
            check_like(found, example, f"{what}[{name!r}]")
    entry = "python"
    try:
        *_, gauss_next = python_state = _python_state(state)
        if gauss_next is not None and not math.isfinite(gauss_next):
            raise ValueError(f"{gauss_next} is no number that may come next")
        random.Random().setstate(python_state)
        entry = "numpy"
        # The library believes any position, and reads what is there.
        if state["numpy"]["position"] > len(state["numpy"]["keys"]):
            raise ValueError("its position is outside of its keys")
        np.random.RandomState().set_state(_numpy_state(state))
        entry = "torch"
        torch.Generator().set_state(state["torch"])
        entry = "cuda"
        for item in state.get("cuda", []):
            if not isinstance(item, Tensor) or item.dtype != torch.uint8:
                raise ValueError("it is no tensor of bytes")
    except Exception as error:  # whatever the libraries raise for what they refuse
        raise CheckpointError(
            f"{what}[{entry!r}] is no state of a random number generator: {error}"
        ) from error


def _python_state(state: dict[str, Any]) -> tuple[Any, ...]:
    version, internal, gauss_next = state["python"]
    return version, tuple(internal), gauss_next


def _numpy_state(state: dict[str, Any]) -> tuple[Any, ...]:
    numpy_state = state["numpy"]
    return (
        numpy_state["bit_generator"],
        numpy_state["keys"].numpy().astype(np.uint32),
        numpy_state["position"],
        numpy_state["has_gauss"],
        numpy_state["cached_gaussian"],
    )


def set_state(state: dict[str, Any]) -> None:
    """Restores what :func:`get_state` returned.

    The CUDA part is ignored where the number of devices differs: such a run is not
    reproducible to the bit anyway.
    """
    random.setstate(_python_state(state))
    np.random.set_state(_numpy_state(state))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    cuda = state.get("cuda", [])
    if torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Restores every global generator on leaving, whatever was drawn inside."""
    state = get_state()
    try:
        yield
    finally:
        set_state(state)


@contextlib.contextmanager
def torch_seeded(seed: int, device: torch.device) -> Iterator[None]:
    """In which torch draws by a seed on the CPU and on ``device``, and only there."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
