"""Hooks that show a run in services which keep track of experiments."""

from __future__ import annotations

import abc
import logging
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np

from alf_lite.config import configurable
from alf_lite.errors import ConfigError, missing_extra
from alf_lite.policies.evaluator import EvalResult
from alf_lite.runs.curves import settings_of
from alf_lite.runs.directory import OPERATIVE_CONFIG, USER_CONFIG
from alf_lite.trainers import train_summaries
from alf_lite.trainers.hooks import Hook, Training
from alf_lite.utils import random_state, summary
from alf_lite.utils.row_log import AXES, KEYS, Row

_logger = logging.getLogger(__name__)

# By tag: how many values are in each bin, and the edges of the bins
Histograms = dict[str, tuple[np.ndarray, np.ndarray]]

# After other hooks, whose numbers it sends, too.
_PRIORITY = 90
# Between two times that rows are sent: a request takes longer than an iteration.
_SEND_SECONDS = 5.0
# Of one request to MLflow.
_MAX_PARAMETERS = 100
_MAX_METRICS = 1000
# What it takes in no name: "#" and "@" are in those of opponents.
_FOREIGN = re.compile(r"[^\w./ -]")
_NUM_BINS = 64


class TrackingHook(Hook, abc.ABC):
    """Sends every row of ``metrics.jsonl`` to a service, settings, videos and files.

    Training is worth more than what is shown of it: a service that cannot be reached
    when the run begins is an error, one that fails later gets one line in the log, and
    nothing more is sent. The run in the service goes on with the run that is resumed;
    iterations that are repeated appear again, at the same place.

    Args:
        extra: the package that the service needs, which is also the name of the extra.
        priority: see :class:`Hook`.
    """

    def __init__(self, extra: str, priority: int) -> None:
        super().__init__(priority)
        if find_spec(extra) is None:
            raise missing_extra(type(self).__name__, extra)
        self._run_id = ""
        self._rows: list[Row] = []
        # Of this iteration; and of earlier ones, with their rows
        self._new_histograms: Histograms = {}
        self._histograms: list[tuple[Row, Histograms]] = []
        self._has_sent_settings = False
        self._videos: list[tuple[Path, Row]] = []
        self._is_working = False
        self._last_sent = -math.inf

    # What a service does

    @abc.abstractmethod
    def _begin(self, name: str, root_dir: Path, run_id: str) -> str:
        """Begins a run and returns its id; continues ``run_id`` unless it is empty."""

    @abc.abstractmethod
    def _send_settings(self, settings: Mapping[str, Any]) -> None: ...

    @abc.abstractmethod
    def _send_rows(self, rows: Sequence[Row]) -> None:
        """Sends rows of finite numbers."""

    def _send_histograms(self, histograms: Histograms, row: Row) -> None:
        """Sends those of an iteration, if the service shows such; ``row`` says when."""
        return

    @abc.abstractmethod
    def _send_video(self, path: Path, row: Row) -> None:
        """Sends what ``VideoRecorder`` has recorded; ``row`` says when."""

    @abc.abstractmethod
    def _end(self, files: Sequence[Path], *, failed: bool) -> None:
        """Sends the files and ends the run."""

    # When it does

    def before_train(self, training: Training) -> None:
        if not training.owns_root_dir:
            raise ConfigError(
                f"{type(self).__name__}: a run that keeps nothing logs nothing. Give "
                "Trainer a root_dir."
            )
        axis = train_summaries.axis(training.algorithm.config)
        self._axis = "iteration" if axis == "iterations" else axis
        name, root_dir = training.root_dir.name, training.root_dir
        with random_state.preserved():  # services draw names
            try:
                self._run_id = self._begin(name, root_dir, self._run_id)
            except Exception as error:
                raise ConfigError(
                    f"{type(self).__name__} cannot begin: {_first_line(error)}"
                ) from error
        self._is_working = True
        summary.listen(self._keep)
        summary.listen_to_histograms(self._keep_histogram)

    def _keep(self, row: Row) -> None:
        self._rows.append(row)
        if self._new_histograms:
            self._histograms.append((row, self._new_histograms))
            self._new_histograms = {}

    def _keep_histogram(self, tag: str, values: np.ndarray) -> None:
        self._new_histograms[tag] = np.histogram(values, _NUM_BINS)

    def after_eval(self, training: Training, result: EvalResult) -> None:
        # Not what lies in its folder: another process may be writing there.
        if result.video is not None:
            numbers = result.iterations, result.env_steps, result.num_updates
            where = dict(zip(AXES, numbers, strict=False))
            self._videos.append((Path(result.video.path), where))

    def after_iter(self, training: Training) -> None:
        if time.monotonic() - self._last_sent >= _SEND_SECONDS:
            self._send(training)

    def after_train(self, training: Training) -> None:
        if not self._run_id:
            return
        summary.flush()
        self._send(training)
        root_dir = training.root_dir
        tables = [root_dir / f"{name}.csv" for name in KEYS]
        texts = [root_dir / name for name in (USER_CONFIG, OPERATIVE_CONFIG)]
        files = [path for path in (*tables, *texts) if path.is_file()]
        self._try(self._end, files, failed=sys.exc_info()[0] is not None)

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self._run_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run_id = str(state["run_id"])

    def _send(self, training: Training) -> None:
        self._last_sent = time.monotonic()
        rows, self._rows = self._rows, []
        histograms, self._histograms = self._histograms, []
        videos, self._videos = self._videos, []
        if not self._is_working or not (rows or videos):
            return
        if not self._has_sent_settings and training.run.iterations > 0:
            # By now everything is built, and has read its settings.
            self._has_sent_settings = True
            self._try(self._send_settings, settings_of(training.root_dir))
        self._try(self._send_rows, rows)
        for row, of_row in histograms:
            self._try(self._send_histograms, of_row, row)
        for path, where in videos:
            self._try(self._send_video, path, where)

    def _try(self, send: Any, *arguments: Any, **options: Any) -> None:
        if not self._is_working:
            return
        try:
            with random_state.preserved():
                send(*arguments, **options)
        except Exception as error:
            self._is_working = False
            _logger.error(
                "%s sends nothing more: %s. The run goes on, its logs are complete.",
                type(self).__name__,
                _first_line(error),
            )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


@configurable
class WandbHook(TrackingHook):
    """Shows the run in Weights & Biases.

    Who is logged in, where the server is and the like say the variables of the
    environment that wandb reads (``WANDB_API_KEY``, ``WANDB_MODE``, …).

    Args:
        project: that the run belongs to.
        name: of the run; that of ``root_dir`` by default.
        group: of runs that belong together, such as seeds.
        tags: of the run.
        mode: "offline" writes below ``root_dir/wandb``, for ``wandb sync`` later. None:
            what the environment says.
        priority: see :class:`Hook`.
    """

    def __init__(
        self,
        project: str = "alf_lite",
        name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        mode: Literal["online", "offline", "disabled"] | None = None,
        priority: int = _PRIORITY,
    ) -> None:
        super().__init__("wandb", priority)
        self._options = {"project": project, "group": group, "tags": list(tags)}
        self._name = name
        self._mode = mode

    def _begin(self, name: str, root_dir: Path, run_id: str) -> str:
        import wandb

        self._run = wandb.init(
            **self._options,
            name=self._name or name,
            dir=str(root_dir),
            id=run_id or None,
            resume="allow",
            mode=self._mode,
            # A progress bar that is redrawn is no log.
            settings=wandb.Settings(console="off"),
        )
        self._run.define_metric(self._axis)
        self._run.define_metric("*", step_metric=self._axis)
        return str(self._run.id)

    def _send_settings(self, settings: Mapping[str, Any]) -> None:
        self._run.config.update(dict(settings), allow_val_change=True)

    def _send_rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log(row)

    def _send_histograms(self, histograms: Histograms, row: Row) -> None:
        import wandb

        axes = {name: row[name] for name in AXES if name in row}
        shown = {t: wandb.Histogram(np_histogram=h) for t, h in histograms.items()}
        self._run.log({**axes, **shown})

    def _send_video(self, path: Path, row: Row) -> None:
        import wandb

        axes = {name: row[name] for name in AXES if name in row}
        video = wandb.Video(str(path), caption=path.stem)
        self._run.log({**axes, "eval/episodes": video})

    def _end(self, files: Sequence[Path], *, failed: bool) -> None:
        import wandb

        artifact = wandb.Artifact(f"logs-{self._run_id}", type="logs")
        for path in files:
            artifact.add_file(str(path))
        self._run.log_artifact(artifact)
        self._run.finish(exit_code=int(failed))


@configurable
class MlflowHook(TrackingHook):
    """Shows the run in MLflow.

    Args:
        experiment: that the run belongs to; created if there is none.
        tracking_uri: of the server or the local store, such as
            ``"sqlite:///mlflow.db"``. None: ``MLFLOW_TRACKING_URI``, else MLflow's
            default.
        name: of the run; that of ``root_dir`` by default.
        priority: see :class:`Hook`.
    """

    def __init__(
        self,
        experiment: str = "alf_lite",
        tracking_uri: str | None = None,
        name: str | None = None,
        priority: int = _PRIORITY,
    ) -> None:
        super().__init__("mlflow", priority)
        self._experiment = experiment
        self._tracking_uri = tracking_uri
        self._name = name
        self._is_continued = False

    def _begin(self, name: str, root_dir: Path, run_id: str) -> str:
        from mlflow import MlflowClient

        self._client = client = MlflowClient(self._tracking_uri)
        if urlsplit(client.tracking_uri).scheme in ("", "file"):
            # A metric is a file there: "X/loss" cannot be beside "X/loss/entropy".
            raise ConfigError(
                f"{client.tracking_uri} is a folder, where MLflow cannot keep all the "
                'numbers. Set MlflowHook.tracking_uri = "sqlite:///mlflow.db".'
            )
        self._is_continued = bool(run_id)
        if run_id:
            client.set_terminated(run_id, "RUNNING")
            return run_id
        found = client.get_experiment_by_name(self._experiment)
        experiment = (
            client.create_experiment(self._experiment)
            if found is None
            else found.experiment_id
        )
        run = client.create_run(experiment, run_name=self._name or name)
        return str(run.info.run_id)

    def _send_settings(self, settings: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        if self._is_continued:
            return  # what it was begun with cannot be changed
        parameters = [
            Param(_FOREIGN.sub("_", name), str(value))
            for name, value in settings.items()
        ]
        for part in _in_parts(parameters, _MAX_PARAMETERS):
            self._client.log_batch(self._run_id, params=part)

    def _send_rows(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(_FOREIGN.sub("_", name), float(value), now, step)
            for row in rows
            for step in [int(row.get(self._axis, 0))]
            for name, value in row.items()
        ]
        for part in _in_parts(metrics, _MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=part)

    def _send_video(self, path: Path, row: Row) -> None:
        self._client.log_artifact(self._run_id, str(path), "videos")

    def _end(self, files: Sequence[Path], *, failed: bool) -> None:
        for path in files:
            self._client.log_artifact(self._run_id, str(path))
        status = "FAILED" if failed else "FINISHED"
        self._client.set_terminated(self._run_id, status)


def _in_parts(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for begin in range(0, len(items), size):
        yield list(items[begin : begin + size])
