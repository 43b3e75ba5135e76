"""What ``scores.py`` runs: suites of tasks, the methods on each, and their settings.

A method is a conf of ours with a few bindings, or Stable-Baselines3 with the settings
of that conf (``sb3``) or with those of rl-baselines3-zoo (``sb3_zoo``). The seeds were
named before the runs. Five tasks were settled anew after they had been run once:
``docs/score_benchmark.md`` has the scores of before.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

import reference_scores
import score_environments as environments
from measuring import HERE
from reference_scores import Task

SEEDS = (100, 101, 102, 103, 104)


class Job(NamedTuple):
    """One cell of a table: all its seeds are runs of it."""

    suite: str
    task: str  # a row of the tables
    method: str  # a column
    env_id: str
    num_steps: int  # of the environment; offline: updates
    seconds: int  # of CPU, about, which orders the queue
    seeds: tuple[int, ...] = SEEDS
    needs: tuple[str, ...] = ()  # modules of extras
    conf: str = ""  # of ours
    bindings: tuple[str, ...] = ()
    sb3: Task | None = None
    data: str = ""  # offline: the conf that collects them

    @property
    def is_ours(self) -> bool:
        return self.sb3 is None

    @property
    def library(self) -> str:
        return "alf_lite" if self.is_ours else "stable_baselines3"


_ZOO = json.loads((HERE / "scores/zoo.json").read_text())
ZOO = {task: Task(num_env_steps=0, **told) for task, told in _ZOO["tasks"].items()}
ZOO_STEPS: dict[str, int] = _ZOO["steps"]  # what the zoo has its settings for

_MUJOCO, _BOX2D = ("mujoco",), ("Box2D",)
_OURS_HERE = (  # without the wrappers of the conf: the environment has them
    'create_environment.env_name = "{env}"',
    "create_environment.wrappers = []",
)
_ENV = ('create_environment.env_name = "{env}"',)
_SAC, _GRID = "sac_half_cheetah", "scores/dqn_minatar_breakout.gin"
# task, conf, bindings, steps, modules, CPU seconds: ours, theirs, the zoo's
_CORE: tuple[tuple[Any, ...], ...] = (
    ("sac_half_cheetah", "", (), 100_000, _MUJOCO, (1050, 1400, 1300)),
    ("sac_hopper", "", (), 100_000, _MUJOCO, (1050, 1400, 1300)),
    ("sac_walker2d", _SAC, _ENV, 100_000, _MUJOCO, (1050, 1400, 1300)),
    ("sac_ant", "", (), 100_000, _MUJOCO, (1200, 1600, 1500)),
    ("ppo_half_cheetah", "", (), 300_000, _MUJOCO, (40, 80, 280)),
    ("ppo_hopper", "", (), 300_000, _MUJOCO, (50, 90, 180)),
    ("ppo_lunar_lander", "", (), 500_000, _BOX2D, (50, 110, 60)),
    ("dqn_cart_pole", "", (), 50_000, (), (40, 100, 60)),
    ("dqn_lunar_lander", "", (), 200_000, _BOX2D, (140, 250, 430)),
    ("dqn_minatar_breakout", _GRID, (), 500_000, ("minatar",), (1400, 1600, 500)),
    ("ppo_door_key", "", _OURS_HERE, 150_000, ("minigrid",), (30, 40, 80)),
    ("ppo_recurrent_cart_pole", "", _OURS_HERE, 100_000, (), (25, 210, 105)),
)


def _core() -> list[Job]:
    jobs = []
    for task, conf, bindings, steps, needs, seconds in _CORE:
        theirs = {"sb3": reference_scores.TASKS[task], "sb3_zoo": ZOO[task]}
        env_id = theirs["sb3"].env_id
        jobs.append(
            Job(
                "core",
                task,
                "alf_lite",
                env_id,
                steps,
                seconds[0],
                SEEDS,
                needs,
                conf=conf or task,
                bindings=tuple(line.format(env=env_id) for line in bindings),
            )
        )
        jobs += [
            Job(
                "core",
                task,
                method,
                env_id,
                steps,
                cost,
                SEEDS,
                needs,
                sb3=settings._replace(num_env_steps=steps),
            )
            for (method, settings), cost in zip(
                theirs.items(), seconds[1:], strict=True
            )
        ]
    return jobs


# method, conf (of which one that is not there is skipped), bindings, CPU seconds
_RECIPES: tuple[tuple[str, str, tuple[str, ...], int], ...] = (
    ("SAC", _SAC, (), 1050),
    (
        *("CrossQ", _SAC),
        (
            "TrainerConfig.algorithm_ctor = @CrossqAlgorithm",
            "CrossqAlgorithm.target_update_tau = None",
            "NormalizedCriticNetwork.joint_fc_layer_params = (512, 512)",
            "BatchNorm.momentum = 0.99",
            "Adam.betas = (0.5, 0.999)",
        ),
        3000,
    ),
    (
        *("TQC", _SAC),
        (
            "TrainerConfig.algorithm_ctor = @TqcAlgorithm",
            "TqcAlgorithm.num_critics = 2",
            "Adam.lr = 0.0003",
        ),
        1800,
    ),
    ("XQC", "xqc_half_cheetah", (), 3000),
    ("SimBa", "simba_half_cheetah", (), 4200),
)
_DMC_RECIPES = ("SAC", "TQC", "XQC")


def _recipes() -> list[Job]:
    seeds = SEEDS[:3]
    jobs = [
        Job(
            "recipes",
            task,
            method,
            env_id,
            100_000,
            seconds,
            seeds,
            _MUJOCO,
            conf=conf,
            bindings=(_ENV[0].format(env=env_id), *bindings),
        )
        for task, env_id in (("hopper", "Hopper-v5"), ("walker2d", "Walker2d-v5"))
        for method, conf, bindings, seconds in _RECIPES
    ]
    for name in environments.DMC:
        env_id = f"score_environments:Twice-{name}-v0"
        jobs += [
            Job(
                "recipes",
                name.replace("-", "_"),
                method,
                env_id,
                50_000,
                seconds // 2,
                seeds,
                needs=("shimmy", "dm_control"),
                conf=conf,
                bindings=(_ENV[0].format(env=env_id), *bindings),
            )
            for method, conf, bindings, seconds in _RECIPES
            if method in _DMC_RECIPES
        ]
    return jobs


_OFFLINE = (
    ("BC", "bc_{}", (), 1.0),
    ("TD3+BC", "td3bc_{}", (), 1.0),
    ("IQL", "iql_{}", (), 1.2),
    ("CQL", "cql_{}", (), 2.0),
    (
        *("ReBRAC", "td3bc_{}"),
        (
            "Td3BcAlgorithm.critic_bc_weight = 0.01",
            "TrainerConfig.mini_batch_length = 3",  # it asks for the action after it
        ),
        1.1,
    ),
)


def _offline() -> list[Job]:
    return [
        Job(
            "offline",
            "pendulum_replay",
            method,
            "Pendulum-v1",
            20_000,
            seconds=int(100 * cost),
            conf=conf.format("pendulum"),
            bindings=(
                "TrainerConfig.num_iterations = 20_000",
                "TrainerConfig.rl_train_after_update_steps = 20_000",
                *bindings,
            ),
            data="collect_pendulum",
        )
        for method, conf, bindings, cost in _OFFLINE
    ]


SUITES = {"core": _core(), "recipes": _recipes(), "offline": _offline()}


def find(suite: str, task: str, method: str) -> Job | None:
    """A job by its names."""
    jobs = SUITES.get(suite, ())
    return next((j for j in jobs if (j.task, j.method) == (task, method)), None)


def settings_hash(job: Job) -> str:
    """Of the settings that a job runs with.

    Of ours it is that of the conf with all that it includes and the bindings, not of
    what the library fills in by itself.

    Raises:
        ConfigError: if the conf is not there, or does not fit.
    """
    if job.sb3 is not None:
        told = job.sb3._asdict()
        if told["reward_scale"] == 1.0:  # as in lines from before there was one
            del told["reward_scale"]
        text = json.dumps(told, sort_keys=True, default=str)
    else:
        import gin

        from alf_lite.config import files

        with files.own_config():
            files.parse_config(*conf_of(job))
            text = gin.config_str()
    text += f"{job.env_id} {job.num_steps} {job.data}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def conf_of(job: Job) -> tuple[str, list[str]]:
    """The conf and the bindings, but for the seed and the folder of the data."""
    bindings = list(job.bindings)
    if job.data:
        bindings.append('DATA = "data"')
    else:
        bindings.append(f"TrainerConfig.num_env_steps = {job.num_steps}")
    own = HERE / job.conf
    # By its path: a name would be looked for where this is run, too
    packaged = HERE.parent / "confs" / f"{job.conf}.gin"
    return str(own if own.is_file() else packaged), bindings
