"""An algorithm of one's own in one file: REINFORCE with a learnt baseline.

    python examples/own_algorithm.py --root_dir=runs/reinforce

Its conf is ``own_algorithm.gin`` beside it, which names the class in full; nothing is
registered. The command line trains it as well, from this folder:

    alf_lite train --conf=own_algorithm --root_dir=runs/reinforce

Williams, "Simple statistical gradient-following algorithms for connectionist
reinforcement learning", Machine Learning 8, 1992. An unroll begins and ends anywhere in
an episode; an episode that goes on after it counts as the baseline V estimates.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

import alf_lite
from alf_lite.data_structures import AlgStep, LossInfo, StepType, TimeStep
from alf_lite.distributions import functions as distributions
from alf_lite.networks.actor_networks import ActorDistributionNetwork
from alf_lite.networks.value_networks import ValueNetwork
from alf_lite.utils import losses, value_ops


class ReinforceInfo(NamedTuple):
    """From ``train_step`` to ``calc_loss``."""

    log_prob: Tensor  # [T, B] log π(a_t|s_t), with gradient
    value: Tensor  # [T, B] V(s_t), with gradient
    reward: Tensor  # [T, B] came with s_t
    discount: Tensor  # [T, B] 0 where s_t is terminal
    step_type: Tensor  # [T, B]


class ReinforceAlgorithm(alf_lite.RLAlgorithm):
    """REINFORCE, for any action space."""

    def __init__(
        self,
        observation_spec: Any = None,  # that of env
        action_spec: Any = None,
        *,
        gamma: float = 0.99,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            observation_spec,
            action_spec,
            train_state_spec=(),  # these networks have no memory
            is_on_policy=True,
            **kwargs,  # environment, optimizer and what else every algorithm has
        )
        self._actor_network = ActorDistributionNetwork(observation_spec, action_spec)
        self._value_network = ValueNetwork(observation_spec)
        self._gamma = gamma

    # Acting, on time steps [B]

    def predict_step(self, inputs: TimeStep, state: Any) -> AlgStep:
        """Greedy, unless asked otherwise."""
        policy, _ = self._actor_network(inputs.observation)
        return AlgStep(distributions.epsilon_greedy(policy, self.predict_epsilon))

    def rollout_step(self, inputs: TimeStep, state: Any) -> AlgStep:
        """Draws an action and remembers it."""
        policy, _ = self._actor_network(inputs.observation)
        action = distributions.sample(policy)
        return AlgStep(action, info=action)

    # Learning

    def train_step(self, inputs: TimeStep, state: Any, rollout_info: Any) -> AlgStep:
        """Evaluates the policy on all steps of the unroll at once, [T·B]."""
        policy, _ = self._actor_network(inputs.observation)
        value, _ = self._value_network(inputs.observation)
        info = ReinforceInfo(
            log_prob=distributions.log_prob(policy, rollout_info),
            value=value,
            reward=inputs.reward,
            discount=inputs.discount,
            step_type=inputs.step_type,
        )
        return AlgStep(rollout_info, info=info)

    def calc_loss(self, info: ReinforceInfo) -> LossInfo:
        """−(G_t − V(s_t)) log π(a_t|s_t) + ½ (G_t − V(s_t))², [T-1, B]."""
        returns = value_ops.discounted_return(
            info.reward,
            info.value.detach(),
            info.step_type,
            self._gamma * info.discount,
        )
        error = returns - info.value[:-1]  # the last step bootstraps
        valid = info.step_type[:-1] != StepType.LAST
        advantage = losses.normalize(error.detach(), valid)
        actor_loss = -advantage * info.log_prob[:-1]
        value_loss = 0.5 * error.square()
        return LossInfo(
            loss=actor_loss + value_loss,
            extra={"actor_loss": actor_loss, "value_loss": value_loss},
        )


def main() -> None:
    """Trains the conf."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root_dir", type=Path, default=Path("runs/reinforce"))
    parser.add_argument("--num_env_steps", type=int, default=100_000)
    arguments = parser.parse_args()
    result = alf_lite.train(
        Path(__file__).with_suffix(".gin"),
        arguments.root_dir,
        seed=0,
        gin_params=[f"TrainerConfig.num_env_steps = {arguments.num_env_steps}"],
    )
    print(f"Training episodes return {result.average_return:.1f} at the end")


if __name__ == "__main__":
    main()
