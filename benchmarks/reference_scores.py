"""What the peers' algorithms reach with the settings of our confs.

    PEERS/bin/python benchmarks/reference_scores.py ppo_acrobot sb3 --seed=100
    PEERS/bin/python benchmarks/reference_scores.py ppo_acrobot cleanrl \
        --script=CLEANRL/cleanrl/ppo.py --seed=100

prints one JSON line: the mean return of greedy episodes after the training, as the
evaluation that ends one of our runs. A task is named like the conf whose settings it
has. It needs nothing of alf_lite. ``scores.py`` has its Stable-Baselines3 from here.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# isort: off
import measuring  # noqa: F401 - first: it sets the number of threads
import peers
# isort: on

import gymnasium as gym
import numpy as np
import score_environments as environments
import torch
from gymnasium.wrappers import TransformReward


class Task(NamedTuple):
    """A conf's environment and settings, in the words of Stable-Baselines3."""

    algorithm: str
    env_id: str
    num_env_steps: int
    settings: dict[str, Any]
    num_envs: int = 1
    hidden_sizes: tuple[int, ...] = (64, 64)
    normalizes: tuple[str, ...] = ()  # observations, rewards
    log_std: float = 0.0  # of PPO's policy at first; CleanRL's scripts keep 0
    noise: float = 0.0  # of TD3; 1 is half of the range of an action
    num_episodes: int = 100
    package: str = "stable_baselines3"
    policy: str = "MlpPolicy"
    network: tuple[tuple[str, Any], ...] = ()  # further arguments of the policy
    reward_scale: float = 1.0  # of the rewards that it is trained on


def _linear(value: Any) -> Any:
    """``lin_X`` falls from X to 0; Stable-Baselines3 tells how much is left."""
    if not str(value).startswith("lin_"):
        return value
    first = float(value.removeprefix("lin_"))
    return lambda left: first * left


def _ppo(
    lr: float | str, n_steps: int, n_epochs: int, batch_size: int, **more: Any
) -> dict:
    settings = {"gae_lambda": 0.95, "clip_range": 0.2, "ent_coef": 0.0, **more}
    return {
        "learning_rate": lr,
        "n_steps": n_steps,
        "n_epochs": n_epochs,
        "batch_size": batch_size,
        "max_grad_norm": 0.5,
        **settings,
    }


def _off_policy(learning_starts: int, buffer_size: int, gamma: float = 0.99) -> dict:
    return {
        "learning_rate": 1e-3,
        "learning_starts": learning_starts,
        "buffer_size": buffer_size,
        "batch_size": 256,
        "gamma": gamma,
        "tau": 0.005,
        "train_freq": 1,
        "gradient_steps": 1,
    }


def _dqn(
    lr: float, epsilon: tuple[float, float], n_steps: int, period: int, capacity: int
) -> dict:
    """Of ε when it is lowest, and after which part of the run; steps of targets."""
    return {
        "learning_rate": f"lin_{lr}",
        "learning_starts": 1000,
        "buffer_size": capacity,
        "batch_size": 128,
        "gamma": 0.99,
        "n_steps": n_steps,
        "target_update_interval": period,
        "train_freq": 1,
        "gradient_steps": -1,  # one for each step of an environment
        "exploration_final_eps": epsilon[0],
        "exploration_fraction": epsilon[1],
        "max_grad_norm": 10.0,
    }


_WIDE = (256, 256)
_CHEETAH = _ppo("lin_3e-4", 256, 10, 64, gamma=0.98, gae_lambda=0.92)
_SMALL, _MUJOCO = _off_policy(1000, 20_000), _off_policy(5000, 1_000_000)

TASKS = {
    "ppo_cart_pole": Task(
        "PPO",
        "CartPole-v1",
        100_000,
        _ppo("lin_1e-3", 32, 20, 256, gamma=0.99, gae_lambda=0.8),
        num_envs=8,
    ),
    "ppo_pendulum": Task(
        "PPO",
        "Pendulum-v1",
        300_000,
        _ppo("lin_1e-3", 200, 10, 64, gamma=0.9),
        num_envs=8,
    ),
    "ppo_acrobot": Task(
        "PPO",
        "Acrobot-v1",
        200_000,
        _ppo("lin_1e-3", 128, 4, 64, gamma=0.99, gae_lambda=0.94),
        num_envs=16,
        normalizes=("obs",),
    ),
    "ppo_lunar_lander": Task(
        "PPO",
        "LunarLander-v3",
        500_000,
        _ppo("lin_5e-4", 256, 10, 64, gamma=0.999, gae_lambda=0.98, ent_coef=0.01),
        num_envs=16,
    ),
    "ppo_half_cheetah": Task(
        "PPO",
        "HalfCheetah-v5",
        1_000_000,
        _CHEETAH,
        num_envs=8,
        normalizes=("obs", "reward"),
        log_std=-1.0,
        num_episodes=20,
    ),
    "dqn_cart_pole": Task(
        "DQN",
        "CartPole-v1",
        50_000,
        _dqn(2.3e-3, (0.04, 0.16), 5, 128, 50_000),
        reward_scale=0.1,
    ),
    "dqn_lunar_lander": Task(
        "DQN",
        "LunarLander-v3",
        200_000,
        _dqn(1e-3, (0.01, 0.12), 3, 250, 200_000),
        num_envs=8,
        hidden_sizes=(128, 128),
    ),
    # where our conf has correlated noise, the state-dependent one of this library
    "sac_mountain_car_continuous": Task(
        "SAC",
        "MountainCarContinuous-v0",
        20_000,
        {**_SMALL, "use_sde": True},
    ),
    "sac_pendulum": Task("SAC", "Pendulum-v1", 20_000, _SMALL, hidden_sizes=_WIDE),
    "ppo_door_key": Task(
        "PPO",
        environments.DOOR_KEY,
        150_000,
        _ppo(1e-3, 128, 4, 256, gamma=0.99, ent_coef=0.01),
        num_envs=16,
    ),
    "ppo_recurrent_cart_pole": Task(  # 8 sequences of 32 steps
        "RecurrentPPO",
        environments.NO_VELOCITY,
        100_000,
        _ppo("lin_1e-3", 128, 12, 256, gamma=0.98, gae_lambda=0.9),
        num_envs=8,
        normalizes=("obs",),
        package="sb3_contrib",
        policy="MlpLstmPolicy",
        network=(("lstm_hidden_size", 64), ("net_arch", [])),
    ),
    "dqn_minatar_breakout": Task(
        "DQN",
        environments.BREAKOUT,
        500_000,
        {**_dqn(2.5e-4, (0.01, 0.2), 1, 1000, 100_000), "batch_size": 32},
        num_envs=8,
        hidden_sizes=(128,),
        network=(("features_extractor_class", "SmallCnn"),),
    ),
    "td3_pendulum": Task(
        "TD3",
        "Pendulum-v1",
        20_000,
        _off_policy(1000, 20_000, 0.98),
        hidden_sizes=_WIDE,
        noise=0.1,
    ),
}
TASKS["ppo_hopper"] = TASKS["ppo_half_cheetah"]._replace(
    env_id="Hopper-v5",
    num_env_steps=300_000,
    settings={**_CHEETAH, "gamma": 0.99, "gae_lambda": 0.95},
    log_std=0.0,
)
for _name in ("HalfCheetah", "Hopper", "Walker2d", "Ant"):
    _conf = {"HalfCheetah": "half_cheetah"}.get(_name, _name.lower())
    for _algorithm in ("SAC", "TD3"):
        TASKS[f"{_algorithm.lower()}_{_conf}"] = Task(
            _algorithm,
            f"{_name}-v5",
            100_000,
            _MUJOCO,
            hidden_sizes=_WIDE,
            noise=0.1 if _algorithm == "TD3" else 0.0,
            num_episodes=20,
        )
TASKS["sac_ant"] = TASKS["sac_ant"]._replace(
    settings={**_MUJOCO, "learning_rate": 3e-4}
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("library", choices=("sb3", "cleanrl"))
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--script", help="the algorithm's in a checkout of CleanRL")
    parser.add_argument("--num_env_steps", type=int, help="instead of the task's")
    options = parser.parse_args()
    task = TASKS[options.task]
    if options.num_env_steps is not None:
        task = task._replace(num_env_steps=options.num_env_steps)
    begin = time.perf_counter()
    if options.library == "sb3":
        model, policy = make_sb3(task, options.seed)
        model.learn(task.num_env_steps)
    elif options.script is None:
        raise SystemExit("CleanRL is a file for each algorithm: name it by --script")
    else:
        act = _train_cleanrl(task, options.seed, options.script)
        policy = lambda batch, _: [act(x) for x in batch]  # noqa: E731
    seconds = time.perf_counter() - begin
    returns = environments.evaluate(policy, task.env_id, task.num_episodes)
    record = {
        "task": options.task,
        "library": options.library,
        "seed": options.seed,
        "num_env_steps": task.num_env_steps,
        "mean_return": round(float(np.mean(returns)), 2),
        "standard_error": round(float(np.std(returns) / len(returns) ** 0.5), 2),
        "seconds": round(seconds),
    }
    print("\n" + json.dumps(record), file=sys.__stdout__, flush=True)


def make_sb3(task: Task, seed: int) -> tuple[Any, environments.Policy]:
    """A model, and how it acts at the moment of the call."""
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    def ctor() -> gym.Env:
        env = environments.make(task.env_id)
        if task.reward_scale == 1.0:
            return env
        return TransformReward(env, lambda reward: float(reward) * task.reward_scale)

    env: Any = DummyVecEnv([ctor] * task.num_envs)
    settings = {name: _linear(value) for name, value in task.settings.items()}
    scale: Callable[[np.ndarray], np.ndarray] = np.asarray
    if task.normalizes:
        scaled = {f"norm_{what}": what in task.normalizes for what in ("obs", "reward")}
        env = VecNormalize(env, gamma=settings["gamma"], **scaled)
        scale = env.normalize_obs
    if task.noise:
        low, high = env.action_space.low, env.action_space.high
        std = task.noise * (high - low) / 2
        settings["action_noise"] = NormalActionNoise(np.zeros_like(std), std)
    policy: dict[str, Any] = {"net_arch": list(task.hidden_sizes), **dict(task.network)}
    if policy.get("features_extractor_class") == "SmallCnn":
        policy["features_extractor_class"] = _small_cnn()
    if isinstance(policy.get("activation_fn"), str):
        policy["activation_fn"] = getattr(torch.nn, policy["activation_fn"])
    if task.log_std:
        policy["log_std_init"] = task.log_std
    model = getattr(importlib.import_module(task.package), task.algorithm)(
        task.policy,
        env,
        policy_kwargs=policy,
        seed=seed,
        device="cpu",
        **settings,
    )
    state: Any = None

    def act(observations: np.ndarray, is_first: np.ndarray) -> Any:
        nonlocal state
        state = None if is_first.all() else state
        actions, state = model.predict(
            scale(observations), state, episode_start=is_first, deterministic=True
        )
        return actions

    return model, act


def _small_cnn() -> type:
    """The convolutions that alf_lite has for small grids: 16 and 32 of 3x3."""
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class SmallCnn(BaseFeaturesExtractor):
        def __init__(self, space: Any) -> None:
            channels, height, width = space.shape
            super().__init__(space, 32 * (height - 4) * (width - 4))
            self.layers = torch.nn.Sequential(
                torch.nn.Conv2d(channels, 16, 3),
                torch.nn.ReLU(),
                torch.nn.Conv2d(16, 32, 3),
                torch.nn.ReLU(),
                torch.nn.Flatten(),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    return SmallCnn


# CleanRL's names of the settings that its scripts have
_FLAGS = {
    "learning_rate": "learning-rate",
    "n_steps": "num-steps",
    "n_epochs": "update-epochs",
    "gae_lambda": "gae-lambda",
    "ent_coef": "ent-coef",
    "max_grad_norm": "max-grad-norm",
    "gamma": "gamma",
    "learning_starts": "learning-starts",
    "buffer_size": "buffer-size",
    "tau": "tau",
}


def _train_cleanrl(task: Task, seed: int, script: str) -> Callable[[np.ndarray], Any]:
    """By its script, whose networks are what the policy is made of afterwards."""
    if task.reward_scale != 1.0:
        raise SystemExit("CleanRL's scripts leave rewards as they are")
    settings = task.settings
    arguments = [
        f"--env-id={task.env_id}",
        f"--total-timesteps={task.num_env_steps}",
        f"--seed={seed}",
        "--no-cuda",
        *(
            f"--{_FLAGS[key]}={str(value).removeprefix('lin_')}"
            for key, value in settings.items()
            if key in _FLAGS
        ),
    ]
    if task.algorithm == "PPO":
        num_steps = settings["n_steps"] * task.num_envs
        arguments.append(f"--num-envs={task.num_envs}")
        arguments.append(f"--num-minibatches={num_steps // settings['batch_size']}")
    else:
        arguments.append(f"--batch-size={settings['batch_size']}")
    if task.algorithm == "SAC":  # it has two learning rates
        rate = f"={arguments.pop(4).partition('=')[2]}"
        arguments += [f"--policy-lr{rate}", f"--q-lr{rate}"]
    edit = peers.edit_cleanrl if Path(script).stem.startswith("ppo") else str
    peers.run_script(script, arguments, edit)
    return _cleanrl_policy(vars(sys.modules["__main__"]))


def _cleanrl_policy(names: dict[str, Any]) -> Callable[[np.ndarray], Any]:
    def greedy(observation: np.ndarray) -> Any:
        x = torch.as_tensor(observation, dtype=torch.float32).unsqueeze(0)
        with torch.no_grad():
            return choose(x)

    if "q_network" in names:
        choose = lambda x: int(names["q_network"](x).argmax())  # noqa: E731
        return greedy
    if "agent" not in names:
        actor = names["actor"]
        take = actor.get_action if hasattr(actor, "get_action") else actor
        choose = lambda x: _first(take(x))  # noqa: E731
        return greedy
    agent = names["agent"]
    if hasattr(agent, "actor"):
        choose = lambda x: int(agent.actor(x).argmax())  # noqa: E731
        return greedy
    # ppo_continuous_action.py: within bounds, on normalised observations
    env = names["envs"].envs[0]
    space = env.action_space

    def continuous(x: torch.Tensor) -> np.ndarray:
        statistics = env.get_wrapper_attr("obs_rms")
        scaled = (x.numpy() - statistics.mean) / np.sqrt(statistics.var + 1e-8)
        mean = agent.actor_mean(torch.as_tensor(scaled.clip(-10, 10)).float())
        return np.clip(mean.numpy()[0], space.low, space.high)

    choose = continuous
    return greedy


def _first(output: Any) -> np.ndarray:
    """The action of an actor's output; SAC returns (sampled, log prob, mean)."""
    mean = output[2] if isinstance(output, tuple) else output
    return mean.numpy()[0]


if __name__ == "__main__":
    main()
