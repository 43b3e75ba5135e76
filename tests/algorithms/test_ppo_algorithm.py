from __future__ import annotations

import math

import pytest
import torch

from alf_lite.algorithms.actor_critic_algorithm import ActorCriticInfo
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm, PPOInfo, PPOLossInfo
from alf_lite.data_structures import BatchInfo, Experience, LossInfo, TimeStep
from alf_lite.distributions.discrete import Categorical
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.utils.diagnostics import diagnostics_if

OBSERVATION = TensorSpec((2,))
ACTION = BoundedTensorSpec((), torch.int64, 0, 1)


def ppo(**kwargs) -> PPOAlgorithm:
    return PPOAlgorithm(OBSERVATION, ACTION, **kwargs)


def info(ratio, advantage, value, old_value, value_target) -> PPOInfo:
    """One step per list entry, [1, B], with a uniform policy over two actions."""
    num_steps = len(ratio)
    return PPOInfo(
        action=torch.zeros(1, num_steps, dtype=torch.int64),
        log_prob=math.log(0.5) - torch.tensor([ratio]).log(),
        advantage=torch.tensor([advantage]),
        value_target=torch.tensor([value_target]),
        old_value=torch.tensor([old_value]),
        valid=torch.ones(1, num_steps, dtype=torch.bool),
        action_distribution=Categorical(torch.zeros(1, num_steps, 2)),
        value=torch.tensor([value]),
    )


def test_the_variance_that_the_old_values_explain_is_told_to_who_asks():
    batch = info([1.0] * 3, [0.0] * 3, [0.0] * 3, [1.0, 2.0, 4.0], [3.0, 4.0, 6.0])
    extra = ppo().calc_loss(batch).extra
    assert extra.explained_variance.item() == pytest.approx(1.0)
    with diagnostics_if(False):
        assert ppo().calc_loss(batch).extra.explained_variance == ()


def unroll(step_type, reward, discount) -> TimeStep:
    """One environment, batch-major [1, T]."""
    num_steps = len(step_type)
    return TimeStep(
        step_type=torch.tensor([step_type], dtype=torch.int32),
        reward=torch.tensor([reward]),
        discount=torch.tensor([discount]),
        observation=torch.arange(2.0 * num_steps).reshape(1, num_steps, 2) / 10,
    )


def test_a_correction_keeps_three_policies_apart():
    """μ acted, π_prox starts the updates, and π is trained."""
    algorithm = ppo(off_policy_correction="vtrace", gamma=0.9, rho_clip=1.2)
    steps = unroll([0, 1, 2, 0], [0.0, 1.0, 2.0, 0.0], [1.0, 1.0, 0.0, 1.0])
    action = torch.tensor([[0, 1, 0, 1]])
    behavior = Categorical(torch.randn(1, 4, 2))
    experience = Experience(
        time_step=steps,
        rollout_info=ActorCriticInfo(action=action, action_distribution=behavior),
    )
    valid = torch.tensor([[True, True, False, False]])
    batch = algorithm.preprocess(experience, valid, BatchInfo())
    result = batch.rollout_info
    with torch.no_grad():
        proximal, _ = algorithm._policy(steps.observation[0])
        value, _ = algorithm._value_network(steps.observation[0])
    log_prob = proximal.log_prob(action[0])
    torch.testing.assert_close(result.log_prob[0], log_prob)
    torch.testing.assert_close(result.old_value[0], value)
    ratio = (log_prob - behavior.log_prob(action)[0]).exp()
    truncated = torch.where(valid[0], ratio.clamp(max=1.2), 0.0)
    torch.testing.assert_close(result.weights.truncated[0], truncated)
    # The clip is around π_prox: a policy twice as likely to act so gains no more.
    moved = result._replace(
        advantage=torch.ones(1, 4),
        log_prob=result.log_prob - math.log(2),
        action_distribution=Categorical(proximal.logits[None]),
        value=value[None],
    )
    loss = ppo(normalize_advantages=False).calc_loss(moved).extra
    torch.testing.assert_close(loss.policy_loss[0], -1.2 * truncated)
    assert loss.policy_lag.max_importance_weight == ratio[:2].max()
    torch.testing.assert_close(loss.policy_lag.importance_weight[0, :2], ratio[:2])


def test_clips_of_a_correction_that_is_not_made_are_refused():
    for name in ("rho_clip", "c_clip"):
        with pytest.raises(ConfigError, match=f"{name} has no effect: off_policy_"):
            ppo(**{name: 0.5})
    assert ppo(rho_clip=1.0, c_clip=1.0).corrects_policy_lag is False


def test_updates_stop_at_one_and_a_half_times_the_target_divergence():
    def loss_with(approx_kl: float) -> LossInfo:
        # The second step is not valid and does not count.
        kl = torch.tensor([[approx_kl, 1e9]])
        return LossInfo(extra=PPOLossInfo((), (), (), approx_kl=kl, clip_fraction=()))

    valid = torch.tensor([[True, False]])
    assert not ppo().should_stop_updates(loss_with(1e9), valid)
    assert not ppo(target_kl=0.01).should_stop_updates(loss_with(0.0149), valid)
    assert ppo(target_kl=0.01).should_stop_updates(loss_with(0.0151), valid)


def test_only_who_may_stop_the_updates_early_is_asked():
    class Impatient(PPOAlgorithm):
        stops_updates_early = True

        def should_stop_updates(self, loss_info, valid):
            return True

    assert ppo(target_kl=0.01).stops_updates_early
    assert not ppo().stops_updates_early
    assert Impatient(OBSERVATION, ACTION).stops_updates_early


def test_advantages_and_log_probs_are_clipped_where_that_is_asked_for():
    algorithm = ppo(normalize_advantages=False, advantage_clip=1.5, log_prob_clip=0.5)
    loss = algorithm.calc_loss(info([1.1, 1.1], [4.0, -1.0], *[[0.0] * 2] * 3))
    # log 0.5 is below -0.5, and so is the old one, log 0.5 - log 1.1: the ratio is 1.
    torch.testing.assert_close(loss.extra.policy_loss, torch.tensor([[-1.5, 1.0]]))
    for name in ("advantage_clip", "log_prob_clip", "desired_kl", "max_policy_kl"):
        with pytest.raises(ValueError, match=name):
            ppo(**{name: -1.0})
