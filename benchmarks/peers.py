"""The peers: Stable-Baselines3, Tianshou, and the scripts of CleanRL and LeanRL.

Every function trains until ``num_env_steps`` with the sizes it is given; the steps are
counted by the environment (``measuring.py``).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


def run_sb3(
    algorithm: str,
    env_id: str,
    num_envs: int,
    num_env_steps: int,
    normalize: bool = False,
    policy: str = "MlpPolicy",
    package: str = "stable_baselines3",
    device: str = "cpu",
    **kwargs: Any,
) -> None:
    """Trains ``algorithm`` ("PPO", "SAC", …) of Stable-Baselines3.

    ``package`` may be one with the same interface: sb3_contrib, or sbx, which is jax.
    """
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = DummyVecEnv([lambda: gym.make(env_id)] * num_envs)
    if normalize:
        env = VecNormalize(env)
    model_class = getattr(importlib.import_module(package), algorithm)
    model = model_class(policy, env, device=device, verbose=0, **kwargs)
    model.learn(num_env_steps)
    env.close()


def train_tianshou(
    algorithm: Any,
    env_id: str,
    num_env_steps: int,
    *,
    learning_starts: int,
    steps_per_update: int,
    batch_size: int,
    buffer_size: int,
) -> None:
    """Trains an off-policy ``algorithm`` of Tianshou in one environment."""
    from tianshou.data import Collector, ReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams

    env = DummyVectorEnv([lambda: gym.make(env_id)])
    collector = Collector(
        algorithm, env, ReplayBuffer(buffer_size), exploration_noise=True
    )
    collector.reset()
    collector.collect(n_step=learning_starts, random=True)
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_collector=None,
            max_epochs=1,
            epoch_num_steps=num_env_steps - learning_starts,
            collection_step_num_env_steps=steps_per_update,
            update_step_num_gradient_steps_per_sample=1 / steps_per_update,
            batch_size=batch_size,
            show_progress=False,
            test_in_training=False,
        )
    )
    env.close()


def run_script(
    path: str, arguments: list[str], edit: Callable[[str], str] = lambda source: source
) -> None:
    """Runs a single-file script as ``__main__``, in a temporary folder, silently.

    Args:
        path: the script, in the user's own checkout.
        arguments: its command line.
        edit: changes that the script needs to run on today's packages.
    """
    script = Path(path).resolve()
    source = edit(script.read_text(encoding="utf-8"))
    _use_old_vector_environments()
    _stub_wandb()
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    sys.modules["__main__"] = main
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent.parent))  # cleanrl_utils
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as silence:
        os.chdir(folder)
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            exec(compile(source, str(script), "exec"), main.__dict__)
        os.chdir(script.parent)


def edit_cleanrl(source: str) -> str:
    """What gymnasium >= 1.0 asks for: a lambda wrapper is told its space."""
    return source.replace(
        "lambda obs: np.clip(obs, -10, 10))",
        "lambda obs: np.clip(obs, -10, 10), env.observation_space)",
    )


def resize(source: str, old: int, sizes: tuple[int, ...]) -> str:
    """Hidden layers of another size, in a script where ``old`` means nothing else."""
    if len(set(sizes)) != 1 or len(sizes) != 2:
        raise SystemExit(f"the script has two layers of one size, not {sizes}")
    return re.sub(rf"\b{old}\b", str(sizes[0]), source)


_PLAIN_ENVIRONMENT = """
def make_env(env_id, seed, idx, capture_video, run_name):
    return lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(env_id))


"""


def edit_cleanrl_frames(source: str) -> str:
    """Its DQN of Atari games, in an environment that needs none of their wrappers."""
    source = re.sub(
        r"from cleanrl_utils.atari_wrappers import \(.*?\)\n", "", source, flags=re.S
    )
    main = 'if __name__ == "__main__":'
    return source.replace(main, _PLAIN_ENVIRONMENT + main, 1)


def edit_leanrl(source: str) -> str:
    """As ``edit_cleanrl``, and what newer tensordicts ask for.

    That is no_grad around inference, and a name for each output of the actor of SAC, of
    which the action is wanted.
    """
    source = edit_cleanrl(source).replace(
        "TensorDictModule(actor_detach.get_action,",
        "TensorDictModule(lambda x: actor_detach.get_action(x)[0].detach(),",
    )
    return re.sub(
        r"(policy|get_value) = agent_inference\.(\w+)",
        r"\1 = torch.no_grad()(agent_inference.\2)",
        source,
    )


# LeanRL has no PPO for discrete actions, so its script gets an agent for two of them:
# separate 64x64 tanh networks, initialised as its own agent is.
_DISCRETE_AGENT = """
class Agent(nn.Module):
    def __init__(self, n_obs, n_act, device=None):
        super().__init__()

        def network(outputs, std):
            return nn.Sequential(
                layer_init(nn.Linear(n_obs, 64)), nn.Tanh(),
                layer_init(nn.Linear(64, 64)), nn.Tanh(),
                layer_init(nn.Linear(64, outputs), std=std),
            )

        self.critic = network(1, 1.0)
        self.actor = network(2, 0.01)

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, obs, action=None):
        policy = torch.distributions.Categorical(logits=self.actor(obs))
        if action is None:
            action = policy.sample()
        return action, policy.log_prob(action), policy.entropy(), self.critic(obs)


def make_env(env_id, idx, capture_video, run_name, gamma):
    return lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(env_id))


"""


def edit_leanrl_discrete(source: str) -> str:
    """LeanRL's continuous PPO with an agent for two actions."""
    main = 'if __name__ == "__main__":'
    source = edit_leanrl(source).replace(main, _DISCRETE_AGENT + main, 1)
    return re.sub(
        r"assert isinstance\(envs.single_action_space, gym.spaces.Box\).*", "", source
    )


def _use_old_vector_environments() -> None:
    """Gives SyncVectorEnv the auto-reset and the infos of gymnasium 0.29."""

    class OldSyncVectorEnv(gym.vector.SyncVectorEnv):
        def __init__(self, env_fns: Any) -> None:
            mode = gym.vector.AutoresetMode.SAME_STEP
            super().__init__(env_fns, autoreset_mode=mode)

        def step(self, actions: Any) -> Any:
            observation, reward, terminated, truncated, info = super().step(actions)
            episode = info.get("final_info", {}).get("episode")
            if episode:
                info["final_info"] = [
                    {"episode": {"r": episode["r"][i], "l": episode["l"][i]}}
                    for i in np.flatnonzero(terminated | truncated)
                ]
            if "final_obs" in info:
                info["final_observation"] = info["final_obs"]
            return observation, reward, terminated, truncated, info

    gym.vector.SyncVectorEnv = OldSyncVectorEnv


def _stub_wandb() -> None:
    """LeanRL always logs to wandb; here it logs nowhere."""
    wandb: Any = types.ModuleType("wandb")
    wandb.init = wandb.log = lambda *args, **kwargs: None
    sys.modules["wandb"] = wandb
