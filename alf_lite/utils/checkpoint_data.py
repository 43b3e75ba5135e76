"""The content of one checkpoint: to bytes that hold only data, and verified back."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from alf_lite.errors import CheckpointError
from alf_lite.utils import checkpoint_files

NAME = re.compile(r"ckpt-(\d+)")
PART_SUFFIX = ".pt"
# Of files that are mapped into memory instead of being read with the checkpoint.
MAPPED_SUFFIX = ".safetensors"


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
    torch.save(_portable(value, name), file)
    return file.getbuffer()


def _portable(value: Any, path: str) -> Any:
    """``value`` as only the types that can be read without running code.

    Raises:
        TypeError: naming the path of anything else.
    """
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        # torch.save writes the whole storage that a view belongs to.
        is_view = tensor.untyped_storage().nbytes() > tensor.nbytes
        return tensor.clone() if is_view else tensor
    if value is None or type(value) in (bool, int, float, str, bytes, torch.dtype):
        return value
    if isinstance(value, dict):
        return {
            _portable_key(key, path): _portable(item, f"{path}[{key!r}]")
            for key, item in value.items()
        }
    if type(value) in (list, tuple):
        return type(value)(
            _portable(item, f"{path}[{index}]") for index, item in enumerate(value)
        )
    raise TypeError(
        f"{path}: a checkpoint cannot hold a {type(value).__name__}. Store tensors, "
        "numbers, strings, and dicts, lists or tuples of them."
    )


def _portable_key(key: Any, path: str) -> Any:
    if type(key) not in (str, int):
        raise TypeError(f"{path}: expected keys of type str or int, got {key!r}")
    return key


def read_info(path: Path) -> CheckpointInfo:
    """What the manifest of ``path`` says.

    Raises:
        CheckpointError: if the manifest is damaged or belongs to another directory.
    """
    manifest = checkpoint_files.read_manifest(path)
    step = int(path.name.removeprefix("ckpt-"))
    if manifest.get("step") != step:
        raise CheckpointError(
            f"{path}: the manifest is of step {manifest.get('step')!r}; was the "
            "directory renamed?"
        )
    score = manifest.get("best_score")
    parts = [n for n in manifest["files"] if n.endswith(PART_SUFFIX)]
    return CheckpointInfo(
        path=path,
        step=step,
        best_score=float(score) if isinstance(score, int | float) else None,
        resumable=bool(manifest.get("resumable")),
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
        metadata=info.manifest.get("metadata") or {},
        texts=texts,
        mapped_files=mapped_files,
    )


def _read_part(info: CheckpointInfo, part: str) -> Any:
    name = part + PART_SUFFIX
    with checkpoint_files.open_verified(info.path, info.manifest, name) as file:
        try:
            # Spelled out, because an environment variable can turn the default off.
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever a hostile file makes the reader raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CheckpointError(
                f"{info.path / name}: refused, it is not plain data ({reason})"
            ) from error
