"""HDF5 files as those of D4RL (Fu et al., arXiv:2004.07219), with the minari extra.

One array for all episodes, one after the other, a row for each of N actions:

    observations [N, ...], actions [N, ...], rewards [N]
    terminals [N]           whether the state that the action led to was terminal
    timeouts [N]            whether the episode was ended there, as by a limit
    next_observations [N, ...]

The last two may be absent, and those of numbers [N, 1]. An episode also ends where the
next row begins with another observation than ``next_observations`` says, but for the
rounding of the coarser of the two, as where rows were left out.
Without ``next_observations`` nobody knows what the last action of an episode led to: in
place of a terminal state is the observation before, whose value counts as zero, but a
model of the environment would learn it, as a warning says; where a limit ended the
episode that action is left out. With neither of the two nobody knows where limits were,
and the next episode is taken for what followed: a warning says so. ``infos`` and
``metadata`` are not read.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from alf_lite.border import RefusalError, border
from alf_lite.datasets import source
from alf_lite.datasets.minari_datasets import check_group
from alf_lite.errors import DataError, needs_extra

if TYPE_CHECKING:
    import h5py

_logger = logging.getLogger(__name__)

MAGIC = b"\x89HDF\r\n\x1a\n"
_REQUIRED = ("observations", "actions", "rewards", "terminals")
_OPTIONAL = ("timeouts", "next_observations")
_FLAT = ((), (1,))  # shapes of one number in each row


class D4rlFile(source.Source):
    """The episodes of one file.

    Raises:
        ConfigError: if the minari extra is missing.
        DataError: if the file is damaged, or an array is missing or of another length.
    """

    is_in_environment_units = True

    def __init__(self, file: Path) -> None:
        self.name = str(file)
        self._file = file
        headers = self._read(of_headers=True)
        if not headers.keys() & set(_OPTIONAL):
            _logger.warning(
                "%s has neither %s: where a limit ended an episode, the first step of "
                "the next one is taken for what followed",
                file,
                " nor ".join(_OPTIONAL),
            )
        self.fields = source.episode_fields(
            {
                "observation": source.RecordedField.of(headers["observations"]),
                "action": source.RecordedField.of(headers["actions"]),
                "reward": source.RecordedField.of(headers["rewards"]),
            }
        )
        arrays = self._read("terminals", *_OPTIONAL, "observations")
        self._knows_what_follows = "next_observations" in arrays
        self._terminals, self._ends = self._find_ends(arrays)
        if not self._knows_what_follows and self._terminals.any():
            _logger.warning(
                "%s has no next_observations: in place of each of %d terminal states "
                "is the observation before. Critics value them as 0, but a model of "
                "the environment (MbrlAlgorithm, Tdmpc2Algorithm) would learn them.",
                file,
                self._terminals.sum(),
            )
        self.lengths = [int(sum(len(rows) + 1 for rows in self._episodes()))]

    def sequences(self) -> Iterator[source.StepSequence]:
        arrays = self._read(*_REQUIRED, *_OPTIONAL)
        terminals = self._terminals
        for rows in self._episodes():
            begin, end = rows.start, rows.stop
            observations = arrays["observations"][begin:end]
            following = arrays.get("next_observations")
            if following is not None:
                last = following[end - 1 : end]
            elif terminals[end - 1]:
                last = observations[-1:]
            else:
                last = arrays["observations"][end : end + 1]
            truncated = np.zeros(len(rows), bool)
            truncated[-1] = not terminals[end - 1]
            yield source.episode_sequence(
                {
                    "observation": np.concatenate([observations, last]),
                    "action": arrays["actions"][begin:end],
                    "reward": arrays["rewards"][begin:end],
                    "terminated": terminals[begin:end],
                    "truncated": truncated,
                }
            )

    def _find_ends(self, arrays: source.Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Which rows [N] are terminal, and which end an episode."""
        with border(self.name):
            terminals = source.as_flags(arrays["terminals"])
            ends = terminals.copy()
            if "timeouts" in arrays:
                ends |= source.as_flags(arrays["timeouts"])
            if self._knows_what_follows:
                goes_on = _are_equal(
                    arrays["next_observations"][:-1], arrays["observations"][1:]
                )
                is_cut = ~ends[:-1] & ~goes_on
                ends[:-1] |= is_cut
                if is_cut.sum() > len(ends) / 2:
                    _logger.warning(
                        "%s: %d of %d rows end an episode only because the next row "
                        "begins with another observation than next_observations says",
                        self.name,
                        is_cut.sum(),
                        len(ends),
                    )
        ends[-1:] = True
        return terminals, ends

    def _episodes(self) -> Iterator[range]:
        """The rows of each episode that has any."""
        begin = 0
        for end in (np.flatnonzero(self._ends) + 1).tolist():
            is_known = self._knows_what_follows or self._terminals[end - 1]
            rows = range(begin, end if is_known else end - 1)
            if rows:
                yield rows
            begin = end

    def _read(self, *names: str, of_headers: bool = False) -> source.Arrays:
        """The arrays of these names that are there; or, without rows, of them all.

        Raises:
            ConfigError, DataError: see the class.
        """
        with needs_extra(self.name, "minari"):
            import h5py
        with border(self.name), h5py.File(self._file, "r") as root:
            check_group(root.id, "", set(), {})
            known = [name for name in (*_REQUIRED, *_OPTIONAL) if name in root]
            self._check_headers(root, known)
            if of_headers:
                return {name: _rows(root[name], name, 0) for name in known}
            arrays = [name for name in names if name in known]
            source.check_fits("it", sum(root[name].nbytes for name in arrays))
            return {name: _rows(root[name], name) for name in arrays}

    def _check_headers(self, root: h5py.File, known: list[str]) -> None:
        missing = [name for name in _REQUIRED if name not in known]
        if missing:
            raise DataError(
                f"{self.name}: {', '.join(missing)} missing; it has "
                f"{', '.join(root) or 'nothing'}. Expected are the arrays of D4RL: "
                f"{', '.join(_REQUIRED)}."
            )
        num_rows = root["rewards"].shape[:1]
        for name in known:
            array = root[name]
            is_wide = name in ("terminals", "timeouts") and array.shape[1:] not in _FLAT
            if not num_rows or array.shape[:1] != num_rows or is_wide:
                raise DataError(
                    f"{self.name}: {name} is {array.shape}, but rewards "
                    f"{root['rewards'].shape}: expected as many "
                    f"{'flags' if is_wide else 'rows'}"
                )
            if array.dtype.kind not in "biuf":
                raise RefusalError(f"{name} is {array.dtype}, no numbers")
        shapes = {root[n].shape for n in known if n.endswith("observations")}
        if len(shapes) > 1:
            raise DataError(
                f"{self.name}: observations and next_observations differ: {shapes}"
            )


def _rows(array: h5py.Dataset, name: str, end: int | None = None) -> np.ndarray:
    """The first ``end`` rows, all by default; numbers [N, 1] as [N]."""
    rows = array[:end]
    is_column = name in ("rewards", "terminals", "timeouts") and rows.shape[1:] == (1,)
    return rows[:, 0] if is_column else rows


def _are_equal(following: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """[N] whether observations [N, ...] are the same, but for rounding."""
    kinds = [array.dtype for array in (following, begins) if array.dtype.kind == "f"]
    if kinds:
        eps = max(float(np.finfo(kind).eps) for kind in kinds)
        equal = np.isclose(following, begins, rtol=eps, atol=1e-6)
    else:
        equal = following == begins
    return equal.reshape(len(equal), math.prod(equal.shape[1:])).all(1)
