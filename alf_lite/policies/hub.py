"""Policies that others have shared on a hub, by names such as ``hf://user/name``."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from alf_lite.config import names as config_names
from alf_lite.errors import ConfigError, needs_extra

SCHEME = "hf://"
_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
# What acting needs. A run on a hub may have more, which nobody need load.
_FILES = [
    "user.gin",
    "run.json",
    "checkpoints/*/manifest.json",
    "checkpoints/*/algorithm.pt",
]


def is_shared(run: str | os.PathLike[str]) -> bool:
    """Whether this is a name on a hub and not a directory."""
    return isinstance(run, str) and run.startswith(SCHEME)


def repository_of(name: str) -> tuple[str, str | None]:
    """The repository and the revision of ``hf://user/name@revision``.

    Raises:
        ConfigError: if the name is not of this form.
    """
    found = _NAME.fullmatch(name.removeprefix(SCHEME))
    if found is None:
        raise ConfigError(
            f"{name!r} is no name on a hub: expected {SCHEME}user/name, or "
            f"{SCHEME}user/name@revision"
        )
    return found[1], found[2]


@contextlib.contextmanager
def downloaded(name: str, *, trust: bool) -> Iterator[Path]:
    """A directory with what acting needs of a shared run, while the block lasts.

    What was downloaded before is not downloaded again.

    Args:
        name: ``hf://user/name``, or ``hf://user/name@revision``.
        trust: False: in the block a conf may only name what alf_lite defines, so that
            reading it runs nobody else's code.

    Raises:
        ConfigError: if the hub cannot be reached, or has no such policy.
        MissingExtraError: without the extra ``hub``.
    """
    repository, revision = repository_of(name)
    with needs_extra(f"{SCHEME} names", "hub"):
        from huggingface_hub import snapshot_download
    with reaching_the_hub(name):
        snapshot = snapshot_download(
            repository, revision=revision, allow_patterns=_FILES
        )
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        # The cache has links, which runs must not have.
        run = Path(folder) / repository.replace("/", "_")
        if os.path.isdir(snapshot):  # it is not if nothing was found
            shutil.copytree(snapshot, run)
        if not (run / "checkpoints").is_dir() or not (run / "user.gin").is_file():
            raise ConfigError(
                f"{name} has no policy of alf_lite: no user.gin and no checkpoints. "
                "Policies are shared with `alf_lite push`."
            )
        if not trust:
            (run / "run.json").unlink(missing_ok=True)  # names folders of modules
            stack.enter_context(config_names.of_the_library_only(name))
        yield run


@contextlib.contextmanager
def reaching_the_hub(name: str) -> Iterator[None]:
    """Makes one line of what a hub refuses, or of a network that is not there."""
    from huggingface_hub import errors

    try:
        yield
    except errors.RepositoryNotFoundError as error:
        raise ConfigError(
            f"{name}: there is no such repository, or it is private and you are not "
            "logged in (`hf auth login`)"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigError(f"{name}: there is no such revision") from error
    except (errors.HfHubHTTPError, OSError) as error:
        said = str(error).split("\n")[0]
        raise ConfigError(f"{name}: the hub cannot be reached: {said}") from error
