"""SAC on HalfCheetah-v5 by Tianshou and TorchRL, as their own examples do it.

Both without what their examples do beside training: test episodes and logging.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import peers
import torch
from torch import nn

GAMMA, TAU, LEARNING_RATE = 0.99, 0.005, 3e-4
HIDDEN_SIZES = [256, 256]
BATCH_SIZE, CAPACITY = 256, 1_000_000


def run_tianshou(env_id: str, num_env_steps: int, learning_starts: int) -> None:
    """Trains with Tianshou 2."""
    from tianshou.algorithm import SAC
    from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import (
        ContinuousActorProbabilistic,
        ContinuousCritic,
    )

    observation_shape, action_space = _spaces(env_id)
    sizes = {"state_shape": observation_shape, "hidden_sizes": HIDDEN_SIZES}

    def make_critic() -> nn.Module:
        net = Net(**sizes, action_shape=action_space.shape, concat=True)
        return ContinuousCritic(preprocess_net=net)

    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(**sizes),
        action_shape=action_space.shape,
        unbounded=True,
        conditioned_sigma=True,
    )
    adam = AdamOptimizerFactory(lr=LEARNING_RATE)
    algorithm = SAC(
        policy=SACPolicy(actor=actor, action_space=action_space),
        policy_optim=adam,
        critic=make_critic(),
        critic_optim=adam,
        critic2=make_critic(),
        critic2_optim=adam,
        tau=TAU,
        gamma=GAMMA,
        alpha=AutoAlpha(-float(action_space.shape[0]), 0.0, adam),
    )
    peers.train_tianshou(
        algorithm,
        env_id,
        num_env_steps,
        learning_starts=learning_starts,
        steps_per_update=1,
        batch_size=BATCH_SIZE,
        buffer_size=CAPACITY,
    )


def run_torchrl(env_id: str, num_env_steps: int, learning_starts: int) -> None:
    """Trains with TorchRL, after its ``sota-implementations/sac``."""
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.envs import DoubleToFloat, GymEnv, TransformedEnv
    from torchrl.objectives import SoftUpdate, group_optimizers
    from torchrl.objectives.sac import SACLoss

    env = TransformedEnv(GymEnv(env_id), DoubleToFloat())
    actor, critic = _torchrl_networks(env_id, env)
    loss = SACLoss(
        actor_network=actor,
        qvalue_network=critic,
        num_qvalue_nets=2,
        loss_function="l2",
        delay_actor=False,
        delay_qvalue=True,
    )
    loss.make_value_estimator(gamma=GAMMA)
    update_target = SoftUpdate(loss, tau=TAU)
    optimizer = group_optimizers(
        *(
            torch.optim.Adam(parameters, lr=LEARNING_RATE)
            for parameters in (
                loss.actor_network_params.flatten_keys().values(),
                loss.qvalue_network_params.flatten_keys().values(),
                [loss.log_alpha],
            )
        )
    )
    collector = Collector(
        env,
        actor,
        init_random_frames=learning_starts,
        frames_per_batch=1,
        total_frames=num_env_steps,
    )
    replay = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY), batch_size=BATCH_SIZE
    )
    for i, frames in enumerate(collector):
        replay.extend(frames.reshape(-1))
        if i < learning_starts:
            continue
        losses = loss(replay.sample())
        total = losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]
        total.sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        update_target.step()
    collector.shutdown()


def _torchrl_networks(env_id: str, env: Any) -> tuple[Any, Any]:
    """The actor and one critic, which the loss turns into two."""
    from tensordict.nn import InteractionType, NormalParamExtractor, TensorDictModule
    from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator

    (observation_size,), action_space = _spaces(env_id)
    (action_size,) = action_space.shape

    def mlp(input_size: int, output_size: int) -> nn.Module:
        return MLP(
            in_features=input_size,
            out_features=output_size,
            num_cells=HIDDEN_SIZES,
            activation_class=nn.ReLU,
        )

    network = nn.Sequential(
        mlp(observation_size, 2 * action_size), NormalParamExtractor()
    )
    spec = env.action_spec
    actor = ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        default_interaction_type=InteractionType.RANDOM,
        return_log_prob=False,
    )
    critic = ValueOperator(
        mlp(observation_size + action_size, 1), in_keys=["action", "observation"]
    )
    return actor, critic


def _spaces(env_id: str) -> tuple[tuple[int, ...], gym.spaces.Box]:
    """The shape of an observation, and the space of actions."""
    env = gym.make(env_id)
    shape, action_space = env.observation_space.shape, env.action_space
    env.close()
    return shape, action_space
