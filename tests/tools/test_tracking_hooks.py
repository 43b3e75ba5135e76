"""What a run logs reaches the services that keep track of experiments."""

from __future__ import annotations

import json
import re
import struct
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from alf_lite.errors import ConfigError
from alf_lite.policies.evaluator import Video
from alf_lite.tools import tracking_hooks
from alf_lite.tools.tracking_hooks import MlflowHook, TrackingHook, WandbHook
from alf_lite.trainers.hooks import Hook
from alf_lite.utils import summary
from alf_lite.utils.row_log import METRICS, read_rows
from tests.trainers.conftest import build_trainer, make_noise
from tests.trainers.run_comparison import Dies, log_rows

EVALUATE = {"evaluate": True, "eval_interval": 3, "num_eval_episodes": 2}


class Service(TrackingHook):
    """Keeps what it is sent; fails after some calls."""

    def __init__(self, package: str = "json", fails_after: int = 10**9) -> None:
        super().__init__(package, 90)
        self.fails_after = fails_after
        self.begun: list[str] = []
        self.settings: list[dict] = []
        self.rows: list[dict] = []
        self.videos: list[tuple[str, int]] = []
        self.histograms: list[tuple[dict, int]] = []
        self.ended: list[tuple[list[str], bool]] = []

    def _begin(self, name, root_dir, run_id):
        if self.fails_after < 0:
            raise OSError("no such server\nand more")
        self.begun.append(run_id)
        return run_id or f"{name}-1"

    def _send_settings(self, settings):
        self.settings.append(settings)

    def _send_rows(self, rows):
        self.fails_after -= 1
        if self.fails_after < 0:
            raise ConnectionError("the server is gone")
        self.rows += rows

    def _send_histograms(self, histograms, row):
        self.histograms.append((histograms, row["iteration"]))

    def _send_video(self, path, row):
        self.videos.append((path.name, row["iteration"]))

    def _end(self, files, *, failed):
        self.ended.append(([path.name for path in files], failed))


class Recording:
    """Of the second, the fourth, … evaluation: a file that nobody looks into."""

    every = 2

    def check(self, env):
        pass

    def record(self, algorithm, env, result, path, on_step):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(b"frames")
        return Video(path, {}, b"GIF", (1, 1))


def record_videos(root_dir, hook, **settings):
    """Trains, evaluates at 0, 3, 6 and 8, and records 0, 6 and 8."""

    def make(*, render_mode=None, **others):
        return make_noise(**others)

    hook.recording = Recording()
    settings = {**EVALUATE, **settings}
    return build_trainer(root_dir, hooks=[hook], create_env=make, **settings).train()


@pytest.fixture(autouse=True)
def _send_at_once(monkeypatch):
    monkeypatch.setattr(tracking_hooks, "_SEND_SECONDS", 0.0)


def test_a_service_gets_every_row_the_settings_and_the_files(tmp_path):
    service = Service()
    build_trainer(tmp_path / "run", hooks=[service], **EVALUATE).train()
    logged = list(
        read_rows((tmp_path / "run" / f"{METRICS}.jsonl").read_bytes().splitlines(True))
    )
    # The time of the last checkpoint is written when everything ends.
    assert service.rows == logged[: len(service.rows)]
    assert service.rows[-1]["eval/AverageReturn"] == logged[-1]["eval/AverageReturn"]
    (settings,) = service.settings
    assert settings["TrainerConfig.unroll_length"] == 5
    ((files, failed),) = service.ended
    assert files == [
        "metrics.csv",
        "evaluation_episodes.csv",
        "user.gin",
        "operative.gin",
    ]
    assert not failed


def test_a_video_is_sent_when_it_is_whole_with_the_place_of_its_evaluation(
    tmp_path, monkeypatch
):
    # As while another process writes it, or after a kill
    unfinished = tmp_path / "run" / "videos" / "iteration-6.mp4"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_bytes(b"fra")
    service = Service()
    monkeypatch.setattr(
        service,
        "_send_video",
        lambda path, row: service.videos.append((path.read_bytes(), row)),
    )
    record_videos(tmp_path / "run", service)
    assert {content for content, _ in service.videos} == {b"frames"}
    assert [row["iteration"] for _, row in service.videos] == [0, 6, 8]
    steps = {row["iteration"]: row["env_steps"] for row in service.rows}
    assert all(row["env_steps"] == steps[row["iteration"]] for _, row in service.videos)


def test_a_service_gets_the_histograms_of_every_row(tmp_path):
    service = Service()
    settings = {"summarize_grads_and_vars": True, "summary_interval": 2}
    trainer = build_trainer(tmp_path / "run", hooks=[service], **settings)
    trainer.train()
    places = [row["iteration"] for row in service.rows if "loss" in str(row)]
    assert [at for _, at in service.histograms] == places[: len(service.histograms)]
    assert len(service.histograms) > 1
    histograms, _ = service.histograms[-1]
    parameters = dict(trainer.algorithm.named_parameters())
    for name, parameter in parameters.items():
        counts, edges = histograms[f"parameters/{name}"]
        assert (len(counts), len(edges)) == (64, 65)
        assert counts.sum() == parameter.numel()


def test_it_changes_nothing_and_goes_on_in_the_same_run(tmp_path):
    build_trainer(tmp_path / "straight", hooks=[Service()]).train()
    with pytest.raises(KeyboardInterrupt):
        build_trainer(tmp_path / "straight-2", hooks=[Service(), Dies(5)]).train()
    service = Service()
    build_trainer(tmp_path / "straight-2", hooks=[service]).train()
    assert service.begun == ["straight-2-1"]
    assert service.rows[0]["iteration"] > 2
    build_trainer(tmp_path / "plain").train()
    rows = [log_rows(tmp_path / name, METRICS) for name in ("plain", "straight")]
    assert rows[0] == rows[1] == log_rows(tmp_path / "straight-2", METRICS)


def test_a_service_that_fails_does_not_end_the_run(tmp_path, caplog):
    service = Service(fails_after=2)
    result = build_trainer(tmp_path, hooks=[service]).train()
    assert result.stop_reason == "finished"
    assert len(service.rows) >= 2
    assert service.ended == []
    (record,) = [r for r in caplog.records if "sends nothing more" in r.message]
    assert "ConnectionError: the server is gone. The run goes on" in record.message


@pytest.mark.parametrize("root_dir", [True, False])
def test_what_cannot_work_is_told_when_the_run_begins(tmp_path, root_dir):
    hook = Service(fails_after=-1 if root_dir else 5)
    message = "OSError: no such server\n" if root_dir else "Give Trainer a root_dir"
    with pytest.raises(ConfigError, match=message):
        build_trainer(tmp_path / "run" if root_dir else None, hooks=[hook]).train()
    with pytest.raises(ConfigError, match=r"pip install 'alf_lite\[nonesuch\]'"):
        Service("nonesuch")


def test_the_end_of_a_failing_run_is_a_failure(tmp_path):
    service = Service()
    with pytest.raises(KeyboardInterrupt):
        build_trainer(tmp_path, hooks=[service, Dies(3)]).train()
    assert [failed for _, failed in service.ended] == [True]


@pytest.mark.filterwarnings("ignore")  # of the packages
def test_weights_and_biases_keeps_the_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    hook = WandbHook(project="toys", mode="offline", tags=["a"])
    record_videos(tmp_path / "run", hook, summarize_grads_and_vars=True)
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    rows, settings = _records_of(file)
    logged = list(
        read_rows((tmp_path / "run" / f"{METRICS}.jsonl").read_bytes().splitlines(True))
    )
    for tag in ("eval/AverageReturn", "ToyAlgorithm/loss"):
        expected = [(row["env_steps"], row[tag]) for row in logged if tag in row]
        sent = [(row["env_steps"], row[tag]) for row in rows if tag in row]
        assert np.array(sent) == pytest.approx(np.array(expected))
    assert settings["TrainerConfig.unroll_length"] == 5
    assert any(tag.startswith("eval/episodes") for row in rows for tag in row)
    assert any(tag.startswith("parameters/") for row in rows for tag in row)
    name = hook.state_dict()["run_id"]
    again = WandbHook(project="toys", mode="offline")
    again.load_state_dict({"run_id": name, "videos": []})  # as once, with videos
    build_trainer(tmp_path / "run", hooks=[again], num_iterations=10).train()
    wandb_directory = tmp_path / "run" / "wandb"
    assert len(list(wandb_directory.glob(f"offline-*/run-{name}.wandb"))) == 2


def _records_of(file):
    """The rows and the settings in a file of wandb."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows, settings = [], {}
    for data in _leveldb_records(file.read_bytes()):
        record = Record.FromString(data)
        items = {
            "/".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in record.history.item
        }
        if items:
            rows.append(items)
        for item in record.config.update:
            settings["/".join(item.nested_key) or item.key] = json.loads(
                item.value_json
            )
    return rows, settings


def _leveldb_records(data: bytes):
    """Those of a file of LevelDB's log format, which begins with seven bytes more."""
    position, record = 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:  # the rest of a block is not used
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


@pytest.fixture
def mlflow_client(monkeypatch):
    """Stands in for that of MLflow, and keeps the names of what it is sent."""

    class Client:
        names: list[str] = []  # noqa: RUF012

        def __init__(self, uri):
            self.tracking_uri = uri or "./mlruns"

        def log_batch(self, run_id, metrics=(), params=()):
            self.names += [sent[0] for sent in (*metrics, *params)]

        def __getattr__(self, name):
            return lambda *_, **__: SimpleNamespace(
                experiment_id="1", info=SimpleNamespace(run_id="r")
            )

    mlflow, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    mlflow.MlflowClient = Client
    entities.Metric = entities.Param = lambda *parts: parts
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    monkeypatch.setattr(tracking_hooks, "find_spec", lambda name: True)
    return Client


def test_mlflow_gets_names_that_it_takes(tmp_path, mlflow_client, caplog):
    class Plays(Hook):
        def before_iter(self, training):
            summary.scalar("Games/outcome/run@best/seat_0", 1.0)
            summary.scalar("Games/outcome/run#2/seat_0", 1.0)

    hooks = [Plays(), MlflowHook(tracking_uri="sqlite:///x.db")]
    build_trainer(tmp_path / "run", hooks=hooks).train()
    assert "sends nothing more" not in caplog.text
    assert {
        "ToyAlgorithm/loss",
        "Games/outcome/run_best/seat_0",
        "Games/outcome/run_2/seat_0",
        "TrainerConfig.unroll_length",
    } <= set(mlflow_client.names)
    assert all(re.fullmatch(r"[/\w.\- ]*", name) for name in mlflow_client.names)


@pytest.mark.parametrize("uri", [None, "runs", "file:///runs"])
def test_a_folder_of_mlflow_is_refused_when_the_run_begins(
    tmp_path, mlflow_client, uri
):
    with pytest.raises(ConfigError, match=r"is a folder, .*sqlite:///mlflow.db"):
        build_trainer(tmp_path, hooks=[MlflowHook(tracking_uri=uri)]).train()
    assert not mlflow_client.names


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the packages
def test_mlflow_keeps_the_run_in_its_local_store(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)  # its files
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    hook = MlflowHook("toys", uri)
    record_videos(tmp_path / "run", hook)
    client = mlflow.MlflowClient(uri)
    run = client.get_run(hook.state_dict()["run_id"])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.params["TrainerConfig.unroll_length"] == "5"
    history = client.get_metric_history(run.info.run_id, "eval/AverageReturn")
    logged = list(
        read_rows((tmp_path / "run" / f"{METRICS}.jsonl").read_bytes().splitlines(True))
    )
    assert [(m.step, m.value) for m in history] == [
        (row["env_steps"], row["eval/AverageReturn"])
        for row in logged
        if "eval/AverageReturn" in row
    ]
    files = [file.path for file in client.list_artifacts(run.info.run_id)]
    assert {"metrics.csv", "videos"} <= set(files)
    again = MlflowHook("toys", uri)
    build_trainer(tmp_path / "run", hooks=[again], num_iterations=10).train()
    assert again.state_dict() == hook.state_dict()
    assert len(client.search_runs([run.info.experiment_id])) == 1
