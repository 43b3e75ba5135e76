"""A policy that is pushed acts as before for whoever loads it, and runs no code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import alf_lite
from alf_lite.bin import command
from alf_lite.errors import CheckpointError, ConfigError
from alf_lite.tools import sharing
from tests.hub_server import Hub
from tests.runs.test_stored_runs import RUNS

huggingface_hub = pytest.importorskip("huggingface_hub")
NAME = "me/ppo"


@pytest.fixture(scope="module")
def pushed(tmp_path_factory):
    """A hub with a policy, and what the program said."""
    run = tmp_path_factory.mktemp("runs") / "ppo"
    shutil.copytree(RUNS / "ppo", run)
    with Hub() as hub, pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
        url = hub.address + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url)
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        patch.setenv("HF_TOKEN", "hf_of_a_test")
        sharing.push_policy(run, NAME, num_episodes=2)
        yield hub, run


@pytest.fixture
def hub(pushed, tmp_path, monkeypatch):
    """Its hub with a cache that is empty; what a test changes there is undone."""
    hub, _ = pushed
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    before = dict(hub.repositories[NAME])
    yield hub
    hub.repositories[NAME] = before


def test_a_pushed_policy_acts_as_that_of_the_run(pushed, hub):
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    ours = alf_lite.load_policy(pushed[1])
    theirs = alf_lite.load_policy(f"hf://{NAME}")
    assert len(set(np.asarray(ours.predict(observations)).tolist())) == 2
    np.testing.assert_array_equal(
        ours.predict(observations), theirs.predict(observations)
    )
    hub.asked.clear()
    alf_lite.load_policy(f"hf://{NAME}@main")
    assert not [asked for asked in hub.asked if asked.startswith("GET /me")]  # cached


def test_a_card_tells_scores_and_nothing_of_the_machine(hub):
    files = hub.repositories[NAME]
    card = huggingface_hub.ModelCard(files["README.md"].decode())
    assert card.data.library_name == "alf_lite"
    assert card.data.eval_results[0].dataset_name == "CartPole-v1"
    mean = float(str(card.data.eval_results[0].metric_value).split()[0])
    assert 5 < mean <= 500
    assert f"hf://{NAME}" in card.text
    record = json.loads(files["run.json"])
    assert not record.keys() & {"host", "command", "working_directory", "machine"}
    assert sorted(Path(name).name for name in files) == [
        *("README.md", "algorithm.pt", "manifest.json", "run.json", "user.gin")
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "import os",
        "import tests.hub_server",
        "PPOAlgorithm.predict_step = @os.getcwd",
        "ActorNetwork.fc_layer_params = @alf_lite.bin.command.os.system()",
        "TrainerConfig.algorithm_ctor = @alf_lite.config.names.import_module",
    ],
)
def test_a_conf_that_names_what_the_library_does_not_define_is_refused(hub, statement):
    hub.repositories[NAME]["user.gin"] += f"\n{statement}\n".encode()
    name = statement.split("@")[-1].removeprefix("import ").removesuffix("()")
    with pytest.raises(ConfigError, match=f"hf://{NAME} names '{name}'.*trust=True"):
        alf_lite.load_policy(f"hf://{NAME}")


def test_a_conf_that_is_trusted_may_name_anything(hub):
    hub.repositories[NAME]["user.gin"] += b"\nimport tests.hub_server\n"
    policy = alf_lite.load_policy(f"hf://{NAME}", trust=True)
    assert policy.predict(np.zeros(4, np.float32)) in (0, 1)


def _manifest(files):
    (path,) = [name for name in files if name.endswith("manifest.json")]
    return path, json.loads(files[path])


def test_a_damaged_policy_is_refused(hub):
    files = hub.repositories[NAME]
    (path,) = [name for name in files if name.endswith("algorithm.pt")]
    files[path] = files[path][:-1] + b"!"
    with pytest.raises(CheckpointError, match="sha256"):
        alf_lite.load_policy(f"hf://{NAME}")


def test_a_policy_of_a_newer_version_is_refused(hub):
    path, manifest = _manifest(hub.repositories[NAME])
    hub.repositories[NAME][path] = json.dumps(manifest | {"schema": 99}).encode()
    with pytest.raises(CheckpointError, match="Update alf_lite"):
        alf_lite.load_policy(f"hf://{NAME}")


def test_a_repository_without_a_policy_is_refused(hub):
    hub.repositories[NAME].clear()
    hub.repositories[NAME]["README.md"] = b"nothing"
    with pytest.raises(ConfigError, match="no policy of alf_lite"):
        alf_lite.load_policy(f"hf://{NAME}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf://me", "expected hf://user/name"),
        ("hf://me/nothing", "no such repository"),
        (f"hf://{NAME}@v9", "no such revision"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_line(hub, name, message):
    with pytest.raises(ConfigError, match=message) as error:
        alf_lite.load_policy(name)
    assert "\n" not in str(error.value)


def test_a_hub_that_cannot_be_reached_is_one_line(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="cannot be reached") as error:
        alf_lite.load_policy(f"hf://{NAME}")
    assert "\n" not in str(error.value)


def test_trust_without_a_hub_is_refused(pushed):
    with pytest.raises(ConfigError, match="for policies on a hub"):
        alf_lite.load_policy(pushed[1], trust=True)


def test_a_second_push_replaces_the_checkpoint_and_the_video(pushed, hub, capsys):
    files = hub.repositories[NAME]
    for name in ("checkpoints/ckpt-1/algorithm.pt", "replay.mp4"):
        files[name] = b"of an earlier policy"
    given = [f"--root_dir={pushed[1]}", f"--to={NAME}", "--num_episodes=1"]
    assert command.main(["push", *given]) == 0
    assert b"of an earlier policy" not in files.values()
    assert f'load_policy("hf://{NAME}")' in capsys.readouterr().out


def test_a_push_to_a_branch_is_loaded_from_there(pushed, hub):
    result = sharing.push_policy(pushed[1], f"{NAME}@main", num_episodes=1)
    assert result.name == f"hf://{NAME}@main"
    card = hub.repositories[NAME]["README.md"].decode()
    assert f'load_policy("hf://{NAME}@main")' in card


def test_a_policy_is_written_into_a_folder_and_not_over_another(pushed, tmp_path):
    folder = tmp_path / "policies" / "ppo"
    given = ["push", f"--root_dir={pushed[1]}", "--num_episodes=1"]
    assert command.main([*given, f"--output={folder}"]) == 0
    observations = np.random.default_rng(1).normal(size=(64, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        alf_lite.load_policy(folder).predict(observations),
        alf_lite.load_policy(pushed[1]).predict(observations),
    )
    assert f'load_policy("{folder}")' in (folder / "README.md").read_text()
    with pytest.raises(ConfigError, match="has files"):
        sharing.pack_policy(pushed[1], folder)


@pytest.mark.parametrize(
    ("setting", "how", "use"),
    [
        ("", "the best actions", 'alf_lite.evaluate(policy, "CartPole-v1").mean'),
        (
            "TrainerConfig.epsilon_greedy = 1.0",
            "drawn actions",
            'alf_lite.evaluate(policy, "CartPole-v1", deterministic=False).mean',
        ),
        ("TrainerConfig.epsilon_greedy = 0.5", "epsilon_greedy = 0.5", "predict(obs"),
        ("create_environment.max_episode_steps = 7", "the best actions", "predict(obs"),
        (
            "create_environment.env_kwargs = {'sutton_barto_reward': True}",
            "the best actions",
            "predict(obs",
        ),
    ],
)
def test_a_card_is_of_the_evaluation_that_was_made(pushed, tmp_path, setting, how, use):
    run = Path(shutil.copytree(pushed[1], tmp_path / "run"))
    with (run / "user.gin").open("a") as file:
        file.write(f"\n{setting}\n")
    sharing.pack_policy(run, tmp_path / "out", num_episodes=2)
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"2 episodes with {how}, seed 0" in card
    assert use in card
    if "evaluate" in use:
        policy = alf_lite.load_policy(tmp_path / "out")
        options = {"deterministic": "False" not in use}
        assert len(alf_lite.evaluate(policy, "CartPole-v1", 2, **options).lengths) == 2


def test_a_card_does_not_draw_from_a_policy_without_a_distribution(tmp_path):
    run = Path(shutil.copytree(RUNS / "dqn", tmp_path / "run"))
    with (run / "user.gin").open("a") as file:
        file.write("\nTrainerConfig.epsilon_greedy = 1.0\n")
    sharing.pack_policy(run, tmp_path / "out", num_episodes=1)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "1 episodes with epsilon_greedy = 1.0, seed 0" in card
    assert "policy.predict(observation)" in card
    assert "deterministic=False" not in card


def test_a_folder_is_written_whole_or_not_at_all(pushed, tmp_path, monkeypatch):
    folder = tmp_path / "ppo"
    folder.mkdir()

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sharing, "_card", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sharing.pack_policy(pushed[1], folder, num_episodes=1)
    assert [*tmp_path.rglob("*")] == [folder]
    sharing.pack_policy(pushed[1], folder, num_episodes=1)
    assert (folder / "README.md").is_file()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="has files"):
        sharing.pack_policy(pushed[1], tmp_path / "file")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--to=user/ppo-cartpole uploads it"),
        (["--to=me/x", "--output=x"], "--to"),
        (["--output=x", "--private"], "--private"),
    ],
)
def test_a_push_that_is_unclear_is_one_line(pushed, flags, message, capsys):
    assert command.main(["push", f"--root_dir={pushed[1]}", *flags]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
