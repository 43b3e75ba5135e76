"""Long runs hold no more of the machine at their end than near their beginning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability import resources

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc"),
]

# Runs that lose nothing have 0.1 to 0.3, the planted leak ten.
MEGABYTES_PER_100K_STEPS = 1.0


def settings(num_env_steps: int, interval: int) -> list[str]:
    return [
        f"TrainerConfig.num_env_steps = {num_env_steps}",
        f"ResourceCounter.interval = {interval}",
        "TrainerConfig.num_iterations = 0",
        "TrainerConfig.summary_interval = 100",
        "TrainerConfig.hook_ctors = [@ResourceCounter]",
    ]


# As many steps as possible, of networks as small as possible.
PPO = ["create_environment.num_parallel_environments = 64"]
PPO += ["TrainerConfig.unroll_length = 32", "TrainerConfig.mini_batch_size = 1024"]
SAC = ["create_environment.num_parallel_environments = 16"]
SAC += ["TrainerConfig.replay_buffer_length = 500"]
ASYNC = ["create_environment.num_parallel_environments = 16"]
ASYNC += ["TrainerConfig.unroll_length = 16"]


def soak(
    launcher, conf: Path, directory: Path, options: list[str]
) -> list[resources.Resources]:
    path = directory / "soak.gin"
    path.write_text(f"import tests.reliability.resources\n{conf.read_text()}")
    run = launcher.start(directory / "run", [f"--conf={path}"], settings=options)
    run.finish(seconds=3000)
    return resources.read(directory / "run")


@pytest.mark.parametrize(
    ("name", "options", "num_env_steps", "interval"),
    [
        ("ppo", PPO, 1_000_000, 2),
        ("sac", SAC, 200_000, 60),
        ("async", ASYNC, 300_000, 3),
    ],
    ids=["ppo", "sac", "async"],
)
def test_a_long_run_does_not_grow(
    launcher, conf, tmp_path, name, options, num_env_steps, interval
):
    found = soak(
        launcher, conf[name], tmp_path, [*settings(num_env_steps, interval), *options]
    )
    grown = resources.growth(found)
    print(f"{name}: {found[-1]}, per 100,000 steps {grown}")  # noqa: T201
    assert len(found) >= 100
    assert found[-1].env_steps >= 0.98 * num_env_steps
    assert grown.memory_mb < MEGABYTES_PER_100K_STEPS, grown
    warm = found[len(found) // 5]
    for field in ("descriptors", "threads", "processes"):
        assert getattr(found[-1], field) <= getattr(warm, field), (warm, found[-1])


def test_a_leak_of_a_hundred_bytes_per_step_is_found(launcher, conf, tmp_path):
    options = [*settings(200_000, 1), *PPO, "ResourceCounter.leak_bytes = 100"]
    grown = resources.growth(soak(launcher, conf["ppo"], tmp_path, options))
    assert grown.memory_mb > 5 * MEGABYTES_PER_100K_STEPS
