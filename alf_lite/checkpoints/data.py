"""The content of one checkpoint: to bytes that hold only data, and verified back.

What is loaded into a module is all of it or nothing.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor, nn

from alf_lite.border import FOREIGN, border
from alf_lite.checkpoints import files as checkpoint_files
from alf_lite.errors import CheckpointError, DamagedCheckpointError
from alf_lite.utils import plain_data

NAME = re.compile(r"ckpt-(\d+)")
PART_SUFFIX = ".pt"
# Of files that are mapped into memory instead of being read with the checkpoint.
MAPPED_SUFFIX = ".safetensors"
# Of a run on several ranks: where all but the first one write, and in the metadata how
# many they are.
RANKS_FOLDER = "ranks"
NUM_RANKS = "num_ranks"
_MAX_LISTED = 20


class CheckpointInfo(NamedTuple):
    """What the manifest of a checkpoint says, without reading its files."""

    path: Path
    step: int
    best_score: float | None  # set if it was the best so far when it was written
    resumable: bool  # holds everything that training needs to continue
    parts: tuple[str, ...]  # names of the parts of the state
    manifest: dict[str, Any]


class LoadedCheckpoint(NamedTuple):
    """A verified checkpoint in memory, tensors on the CPU."""

    path: Path
    step: int
    state: dict[str, Any]  # part -> its content
    metadata: dict[str, Any]
    texts: dict[str, str]  # file name -> content
    mapped_files: dict[str, Path]  # file name -> where it is; verified if all was read


def to_bytes(value: Any, name: str) -> memoryview:
    """``value`` serialised.

    Args:
        value: nested dicts, lists and tuples of tensors, numbers and strings.
        name: for errors.

    Raises:
        TypeError: naming the path of anything that is not data.
    """
    file = io.BytesIO()
    torch.save(plain_data.to_plain(value, name), file)
    return file.getbuffer()


def parts_of_other_ranks(path: Path) -> list[Path]:
    """Where the other ranks of a run keep what belongs to ``path``, there or not.

    Args:
        path: what the first rank has written in a directory below that of the run, a
            checkpoint or a file with stored steps.
    """
    folder, ranks = path.parent.name, path.parent.parent / RANKS_FOLDER
    num_ranks = None
    if path.is_dir():
        num_ranks = read_info(path).manifest.get("metadata", {}).get(NUM_RANKS)
    if isinstance(num_ranks, int):
        return [ranks / str(i) / folder / path.name for i in range(1, num_ranks)]
    found = ranks.glob(f"[0-9]*/{folder}/{path.name}")
    return sorted(found, key=lambda part: int(part.parents[1].name))


def read_info(path: Path) -> CheckpointInfo:
    """What the manifest of ``path`` says.

    Raises:
        DamagedCheckpointError: if the manifest is damaged or of another directory.
        CheckpointError: if it cannot be read.
    """
    manifest = checkpoint_files.read_manifest(path)
    step = int(path.name.removeprefix("ckpt-"))
    if manifest.get("step") != step:
        raise DamagedCheckpointError(
            f"{path}: the manifest is of step {manifest.get('step')!r}; was the "
            "directory renamed?"
        )
    what = f"{path / checkpoint_files.MANIFEST_NAME}: "
    score, resumable = manifest.get("best_score"), manifest.get("resumable", False)
    metadata = manifest.get("metadata", {})
    plain_data.check_like(score, None, f"{what}best_score")
    plain_data.check_like(resumable, False, f"{what}resumable")
    plain_data.check_like(metadata, {}, f"{what}metadata")
    plain_data.check_numbers(metadata, f"{what}metadata")
    parts = [n for n in manifest["files"] if n.endswith(PART_SUFFIX)]
    return CheckpointInfo(
        path=path,
        step=step,
        best_score=None if score is None else float(score),
        resumable=resumable,
        parts=tuple(name.removesuffix(PART_SUFFIX) for name in parts),
        manifest=manifest,
    )


def read(
    path: Path, parts: Sequence[str] | None, *, resumable: bool
) -> LoadedCheckpoint | None:
    """The verified content, or None if it is not a checkpoint of the kind asked for."""
    info = read_info(path)
    wanted = info.parts if parts is None else tuple(parts)
    if (resumable and not info.resumable) or not set(wanted) <= set(info.parts):
        return None
    texts, mapped_files = {}, {}
    for name in info.manifest["files"]:
        if name.endswith(MAPPED_SUFFIX):
            mapped_files[name] = path / name
            if parts is None:
                with checkpoint_files.open_verified(path, info.manifest, name):
                    pass
        elif not name.endswith(PART_SUFFIX):
            with checkpoint_files.open_verified(path, info.manifest, name) as file:
                texts[name] = file.read().decode(errors="replace")
    return LoadedCheckpoint(
        path=path,
        step=info.step,
        state={part: _read_part(info, part) for part in wanted},
        metadata=info.manifest.get("metadata", {}),
        texts=texts,
        mapped_files=mapped_files,
    )


def _read_part(info: CheckpointInfo, part: str) -> Any:
    name = part + PART_SUFFIX
    what = info.path / name
    with (
        checkpoint_files.open_verified(info.path, info.manifest, name) as file,
        border(what, FOREIGN),
    ):
        _check_is_uncompressed(file)
        # Spelled out, because an environment variable can turn the default off.
        value = torch.load(file, map_location="cpu", weights_only=True)
        plain_data.check_plain(value, f"{what}: {part}")
    return value


def _check_is_uncompressed(file: IO[bytes]) -> None:
    """Checks that reading takes about as much memory as the file has bytes."""
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"{entry.filename} is compressed")
    file.seek(0)


# Loading a module


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
        for name, part in module.named_modules():
            explain = getattr(part, "explain_misfit", None)  # of settings, in a line
            if explain and (reason := explain(state_dict, f"{name}.")):
                raise CheckpointError(f"{what}: {reason}")
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
