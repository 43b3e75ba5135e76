"""Loading the parameters and buffers of a module: all of them or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from alf_lite.errors import CheckpointError

_MAX_LISTED = 20


def load_module_state(module: nn.Module, state_dict: Any, what: str) -> None:
    """Copies ``state_dict`` into ``module`` if every key, shape and dtype agrees.

    Args:
        module: the constructed module.
        state_dict: as ``module.state_dict()`` gives it.
        what: where the values come from, for the error.

    Raises:
        CheckpointError: with a table of what differs; the module is unchanged.
    """
    check_module_state(module, state_dict, what)
    module.load_state_dict(dict(state_dict), strict=True)


def check_module_state(module: nn.Module, state_dict: Any, what: str) -> None:
    """Raises the errors of :func:`load_module_state`, and changes nothing."""
    check_is_state_dict(state_dict, what)
    expected = module.state_dict()
    differences = [
        (key, _describe(expected, key), _describe(state_dict, key))
        for key in sorted({*expected, *state_dict})
        if _describe(expected, key) != _describe(state_dict, key)
    ]
    if differences:
        raise CheckpointError(
            f"{what} does not fit {type(module).__name__}: {len(differences)} of "
            f"{len(expected)} entries differ\n{_table(differences)}\n"
            "Use the configuration the checkpoint was written with, or another "
            "root_dir."
        )


def check_is_state_dict(value: Any, what: str) -> None:
    """Raises CheckpointError if ``value`` has not names as keys."""
    if not isinstance(value, Mapping) or any(type(key) is not str for key in value):
        raise CheckpointError(
            f"{what}: expected a dict of names and tensors, got {type(value).__name__}"
        )


def non_finite_entries(named_tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of the tensors that hold a NaN or an infinity."""
    floating = {
        name: tensor
        for name, tensor in named_tensors.items()
        if tensor.is_floating_point() and tensor.numel()
    }
    if not floating:
        return []
    # One flag per tensor, read at once: a single wait for the device.
    finite = torch.stack([torch.isfinite(t).all() for t in floating.values()])
    return [name for name, ok in zip(floating, finite.tolist(), strict=True) if not ok]


def _describe(state_dict: Mapping[str, Any], key: str) -> str:
    if key not in state_dict:
        return "-"
    value = state_dict[key]
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__


def _table(differences: list[tuple[str, str, str]]) -> str:
    rows = [("entry", "expected", "found"), *differences[:_MAX_LISTED]]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))
        for row in rows
    ]
    if len(differences) > _MAX_LISTED:
        lines.append(f"  ... and {len(differences) - _MAX_LISTED} more")
    return "\n".join(line.rstrip() for line in lines)
