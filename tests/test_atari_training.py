"""The Atari confs keep single frames, train on stacks and report true scores."""

from __future__ import annotations

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.learning.replay_batches import read_windows
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.data_structures import TimeStep
from alf_lite.environments.creation import create_environment
from tests.source_code import ROOT

pytest.importorskip("ale_py", reason="needs pip install 'alf_lite[atari]'")
pytest.importorskip("cv2", reason="needs pip install 'alf_lite[atari]'")

NUM_ENVIRONMENTS = 2
SHORT = [
    f"create_environment.num_parallel_environments = {NUM_ENVIRONMENTS}",
    "create_environment.seed = 0",
    "TrainerConfig.mini_batch_size = 8",
]
COLLECTING = "TrainerConfig.initial_collect_steps = 1000"


@pytest.fixture
def build():
    """Builds the algorithm of a conf, and closes its environment afterwards."""
    config_files.reset()
    torch.manual_seed(0)
    built = []

    def build(conf, *bindings):
        path = str(ROOT / "confs" / f"{conf}.gin")
        config_files.parse_config(path, [*SHORT, *bindings])
        built.append(create_algorithm(TrainerConfig(), create_environment()))
        return built[-1]

    yield build
    for algorithm in built:
        algorithm.finish_train()
    config_files.reset()


def stored(algorithm):
    """The time steps that the replay buffer holds, [B, N, ...]."""
    buffer = algorithm.replay_buffer
    begin = torch.zeros(NUM_ENVIRONMENTS, dtype=torch.int64)
    length = buffer.total_size // NUM_ENVIRONMENTS
    env_ids = torch.arange(NUM_ENVIRONMENTS)
    return buffer.get_windows(env_ids, begin, length).time_step


def trained(algorithm, batch_size=8):
    """The transformed windows [B, T, ...] of a batch, and where they are stored."""
    buffer, length = (
        algorithm.replay_buffer,
        algorithm.training_run.replay.own.mini_batch_length,
    )
    _, info = buffer.get_batch(batch_size, length)
    experience = read_windows(buffer, info, length, algorithm)
    return experience.time_step, info


@pytest.mark.parametrize(
    ("conf", "bindings"),
    [
        ("dqn_pong", ["TrainerConfig.initial_collect_steps = 16"]),
        ("sac_pong", ["TrainerConfig.initial_collect_steps = 16"]),
        (
            "ppo_pong",
            [
                "TrainerConfig.unroll_length = 8",
                "TrainerConfig.epochs = 1",
            ],
        ),
    ],
)
def test_a_conf_trains_all_its_parameters(build, conf, bindings):
    algorithm = build(conf, *bindings)
    named = [(n, p) for n, p in algorithm.named_parameters() if p.requires_grad]
    before = [parameter.detach().clone() for _, parameter in named]
    while algorithm.train_iter() == 0:
        pass
    for (name, parameter), old in zip(named, before, strict=True):
        assert parameter.isfinite().all()
        assert not parameter.equal(old), name


def test_a_step_takes_the_memory_of_one_frame(build):
    algorithm = build("dqn_pong", COLLECTING)
    algorithm.unroll(3)
    observation = stored(algorithm).observation
    assert observation.dtype == torch.uint8
    assert observation.shape == (NUM_ENVIRONMENTS, 3, 1, 84, 84)
    frame = 84 * 84
    num_bytes = algorithm.replay_buffer._storage.layout.row_bytes
    assert frame <= num_bytes < 1.01 * frame
    header = (ROOT / "confs" / "dqn_pong.gin").read_text()
    assert f"{8 * 25_000 * num_bytes / 1e9:.1f} GB" in header


def test_stacks_are_the_same_when_acting_and_when_training(build):
    algorithm = build(
        "dqn_pong", COLLECTING, "create_environment.max_episode_steps = 5"
    )
    algorithm.unroll(24)
    raw = stored(algorithm)
    state = algorithm.get_initial_transform_state(NUM_ENVIRONMENTS)
    acted = []
    for t in range(24):
        step, state = algorithm.transform_timestep(row(raw, t), state)
        acted.append(step.observation)
    batch, info = trained(algorithm)
    assert batch.observation.shape == (8, 4, 4, 84, 84)
    for b in range(8):
        for t in range(4):
            expected = acted[info.positions[b] + t][info.env_ids[b]]
            assert torch.equal(batch.observation[b, t], expected)


def row(steps, t):
    return nest.map_structure(lambda x: x[:, t], steps)


def test_rewards_are_clipped_in_training_only(build):
    algorithm = build(
        "dqn_pong",
        COLLECTING,
        "create_environment.env_name = 'ALE/SpaceInvaders-v5'",
    )
    algorithm.unroll(150)
    rewards = stored(algorithm).reward
    assert rewards.max() >= 5  # the least that an invader is worth
    assert trained(algorithm, 256)[0].reward.unique().tolist() == [0, 1]


def test_a_lost_life_ends_returns_in_training_only(build):
    algorithm = build(
        "dqn_pong",
        COLLECTING,
        "import alf_lite.data_transformers.single_step_transformers",
        "create_environment.env_name = 'ALE/Breakout-v5'",
        "create_environment.env_info_keys = ['life_lost']",
        "TrainerConfig.data_transformer_ctor = [@FrameStacker, @LifeLossDiscount]",
        "atari_preprocessing.fire_reset = True",
    )
    algorithm.unroll(80)
    raw = stored(algorithm)
    lost = raw.env_info["life_lost"] != 0
    assert lost.any()
    assert (raw.discount == 1).all()
    assert not raw.is_last().any()
    batch: TimeStep = trained(algorithm, 256)[0]
    lost = batch.env_info["life_lost"] != 0
    assert lost.any()
    assert torch.equal(batch.discount == 0, lost)
