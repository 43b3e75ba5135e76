import functools

import pytest
import torch

from alf_lite import nest
from alf_lite.algorithms import tdmpc2_algorithm
from alf_lite.algorithms.learning.construction import create_algorithm
from alf_lite.algorithms.parts.trajectory_optimizers import Mppi
from alf_lite.algorithms.tdmpc2_algorithm import Tdmpc2Algorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import BatchInfo, StepType, TimeStep
from alf_lite.environments.creation import create_environment
from alf_lite.errors import ConfigError, DivergedError
from alf_lite.optimizers.optimizers import Adam
from alf_lite.policies.evaluator import evaluate
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.testing import probe_environments as probes
from alf_lite.unrollers.actor_copy import ActorCopy
from alf_lite.utils.diagnostics import diagnostics_if
from alf_lite.utils.ranks import ranks

_OBSERVATION = TensorSpec((3,))
_ACTION = BoundedTensorSpec((2,), torch.float32, -2.0, 2.0)


def _algorithm(**kwargs):
    torch.manual_seed(0)
    arguments = {
        "gamma": 0.9,
        "planner": Mppi(24, 6, 2),
        "num_policy_trajectories": 4,
        "latent_size": 16,
        "encoder_fc_layer_params": (16,),
        "fc_layer_params": (16,),
    }
    return Tdmpc2Algorithm(_OBSERVATION, _ACTION, **{**arguments, **kwargs})


def _steps(*shape):
    torch.manual_seed(1)
    return TimeStep(
        step_type=torch.full(shape, int(StepType.MID), dtype=torch.int32),
        reward=torch.randn(shape),
        discount=torch.ones(shape),
        observation=torch.randn(*shape, 3),
        prev_action=4 * torch.rand(*shape, 2) - 2,
        env_id=torch.zeros(shape, dtype=torch.int32),
    )


def _loss(algorithm, steps):
    """[B] of windows [B, H+1]."""
    inputs, window = algorithm.preprocess_experience(steps, (), BatchInfo())
    inputs, window = nest.map_structure(lambda t: t.flatten(0, 1), (inputs, window))
    torch.manual_seed(2)
    return algorithm.calc_loss(algorithm.train_step(inputs, (), window).info).loss


def test_simnorm_is_a_softmax_over_groups():
    x = torch.tensor([[1.0, 2, 3, 4, 1, 1, 1, 1], [0, 0, 0, 0, 5, 0, 0, 0]])
    expected = torch.tensor(
        [
            [0.0320586, 0.0871443, 0.2368828, 0.6439143, 0.25, 0.25, 0.25, 0.25],
            [0.25, 0.25, 0.25, 0.25, 0.9801866, 0.0066044, 0.0066044, 0.0066044],
        ]
    )
    assert torch.allclose(tdmpc2_algorithm.simnorm(x, 4), expected, atol=1e-6)


def test_the_entropy_is_that_of_the_papers_code():
    action, entropy = tdmpc2_algorithm.squashed(
        *map(torch.tensor, ([[0.3, -0.7]], [[-1.0, 0.5]], [[0.4, -1.2]]))
    )
    assert action.flatten().tolist() == pytest.approx([0.2913821, -0.7824666], abs=1e-6)
    assert entropy.item() == pytest.approx(-14.3179693, abs=1e-5)
    mean, _ = tdmpc2_algorithm.squashed(torch.tensor([[0.3, -0.7]]), action, None)
    assert mean.flatten().tolist() == pytest.approx([0.2913126, -0.6043678], abs=1e-6)


def test_the_scale_follows_the_range_of_the_values():
    values = torch.arange(0, 21, 2.0)
    assert tdmpc2_algorithm.value_range(values).item() == pytest.approx(18)
    assert tdmpc2_algorithm.value_range(values / 100).item() == 1
    algorithm = _algorithm()
    info = tdmpc2_algorithm.Tdmpc2Info(*[values.unsqueeze(0)] * 6)
    algorithm.after_update(_steps(1, 11), info)
    assert algorithm._scale.item() == pytest.approx(1.17)
    # A row that starts no transition, and a batch without others
    steps = _steps(1, 12)
    steps.step_type[0, 11] = int(StepType.LAST)
    more = torch.cat([values, torch.tensor([500.0])]).unsqueeze(0)
    algorithm._scale.fill_(1.0)
    algorithm.after_update(steps, tdmpc2_algorithm.Tdmpc2Info(*[more] * 6))
    assert algorithm._scale.item() == pytest.approx(1.17)
    steps.step_type.fill_(int(StepType.LAST))
    algorithm.after_update(steps, tdmpc2_algorithm.Tdmpc2Info(*[more] * 6))
    assert algorithm._scale.item() == pytest.approx(1.17, abs=0.01)


def test_the_scale_is_that_of_the_batches_of_all_ranks(monkeypatch):
    values = torch.arange(0, 21, 2.0).unsqueeze(0)
    monkeypatch.setattr(ranks, "size", 2)
    monkeypatch.setattr(ranks, "gather", lambda x: torch.stack([x, x + 22]))
    algorithm = _algorithm()
    info = tdmpc2_algorithm.Tdmpc2Info(*[values] * 6)
    algorithm.after_update(_steps(1, 11), info)
    # 0, 2 … 42: p5 = 2.1, p95 = 39.9
    assert algorithm._scale.item() == pytest.approx(1 + 0.01 * 36.8)


@pytest.mark.parametrize(
    ("length", "gamma"),
    [(50, 0.95), (100, 0.95), (200, 0.975), (500, 0.99), (1000, 0.995), (2000, 0.995)],
)
def test_gamma_follows_the_length_of_episodes(length, gamma):
    assert tdmpc2_algorithm.discount_of(length) == pytest.approx(gamma)
    algorithm = _algorithm(gamma=None, episode_length=length)
    assert algorithm.gamma == pytest.approx(gamma)


def test_what_follows_a_last_step_changes_no_loss():
    algorithm = _algorithm()
    # Not zeros, with which the cross-entropy is the same for every target.
    torch.nn.init.normal_(algorithm._q._output_layer.weight)
    torch.nn.init.normal_(algorithm._target_q._output_layer.weight)
    torch.nn.init.normal_(algorithm._model.reward[-1].weight)
    steps = _steps(2, 4)
    steps.step_type[0, 1] = int(StepType.LAST)
    steps.discount[0, 1] = 0
    loss = _loss(algorithm, steps)
    steps.reward[0, 2:] = 99.0
    steps.observation[0, 2:] = 7.0
    steps.prev_action[0, 2:] = 0.5
    assert torch.equal(_loss(algorithm, steps)[0], loss[0])
    steps.reward[0, 1] += 1  # arrives with the LAST step: trained
    assert not torch.equal(_loss(algorithm, steps)[0], loss[0])


def test_the_share_of_targets_beyond_the_atoms_is_logged():
    algorithm = _algorithm()
    steps = _steps(2, 4)
    steps.reward[0, 1:] = 1e5  # symlog 11.5
    steps.step_type[0, 2] = int(StepType.LAST)  # what follows does not count
    inputs, window = algorithm.preprocess_experience(steps, (), BatchInfo())
    inputs, window = nest.map_structure(lambda t: t.flatten(0, 1), (inputs, window))
    info = algorithm.train_step(inputs, (), window).info
    for share in (info.clipped_rewards, info.clipped_values):
        assert share.tolist() == [pytest.approx(2 / 3), 0]
    with diagnostics_if(False):
        assert algorithm.train_step(inputs, (), window).info.clipped_values == ()


def test_a_terminal_state_has_no_value():
    """y = r there, whatever Q⁻ says; a time limit is bootstrapped."""
    algorithm = _algorithm(horizon=1)
    steps = _steps(1, 2)
    steps.step_type[0, 1] = int(StepType.LAST)

    def losses(discount):
        steps.discount[0, 1] = discount
        inputs, window = algorithm.preprocess_experience(steps, (), BatchInfo())
        torch.manual_seed(3)
        flat = nest.map_structure(lambda t: t.flatten(0, 1), (inputs, window))
        return algorithm.train_step(flat[0], (), flat[1]).info.value

    torch.nn.init.normal_(algorithm._q._output_layer.weight)
    terminal, limit = losses(0.0), losses(1.0)
    torch.nn.init.normal_(algorithm._target_q._output_layer.weight)
    assert torch.equal(losses(0.0), terminal)
    assert not torch.equal(losses(1.0), limit)


def test_the_loss_of_the_policy_reaches_the_policy_alone():
    algorithm = _algorithm()
    torch.nn.init.normal_(algorithm._q._output_layer.weight)
    inputs, window = algorithm.preprocess_experience(_steps(3, 4), (), BatchInfo())
    flat = nest.map_structure(lambda t: t.flatten(0, 1), (inputs, window))
    algorithm.train_step(flat[0], (), flat[1]).info.policy.sum().backward()
    with_gradient = {
        name for name, p in algorithm.named_parameters() if p.grad is not None
    }
    assert with_gradient
    assert all(name.startswith("_model.policy.") for name in with_gradient)


def test_plans_are_deterministic_and_of_each_environment_alone():
    algorithm = _algorithm().eval()
    steps = _steps(8)
    state = algorithm.get_initial_predict_state(8)
    first = algorithm.predict_step(steps, state)
    again = algorithm.predict_step(steps, state)
    assert torch.equal(first.output, again.output)
    assert first.state.shape == (8, 3, 2)
    for i in range(8):
        alone = nest.map_structure(lambda t, i=i: t[i : i + 1], steps)
        one = algorithm.predict_step(alone, state[:1])
        assert torch.allclose(one.output[0], first.output[i], atol=1e-5)
    rollout = algorithm.rollout_step(steps, first.state)
    assert rollout.output.abs().max() <= 2  # the bounds of the environment


def _pendulum():
    config = TrainerConfig(
        algorithm_ctor=functools.partial(
            Tdmpc2Algorithm,
            optimizer=Adam(lr=1e-3),
            gamma=0.9,
            planner=Mppi(24, 6, 2),
            num_policy_trajectories=4,
            latent_size=16,
        ),
        num_iterations=1,
        mini_batch_length=4,
        initial_collect_steps=8,
        initial_random_policy=True,
        replay_buffer_length=100,
    )
    return create_algorithm(config, create_environment("Pendulum-v1"))


def test_random_steps_are_not_planned(monkeypatch):
    algorithm = _pendulum()
    planned = []
    plan = Mppi.optimize
    monkeypatch.setattr(
        Mppi, "optimize", lambda *args: planned.append(1) or plan(*args)
    )
    assert algorithm.acts_randomly
    actions = algorithm.unroll(8).action
    assert not planned
    assert len(actions.unique()) == 8
    assert not algorithm.acts_randomly
    algorithm.unroll(2)
    assert len(planned) == 2


def test_random_steps_of_a_worker_are_not_planned(monkeypatch):
    actor = ActorCopy(
        _algorithm(),
    )
    monkeypatch.setattr(actor.policy, "rollout_step", None)
    actor._acts_randomly = True
    state = actor.policy.get_initial_rollout_state(8)
    step = actor.act(_steps(8), state)
    assert step.output.shape == (8, 2)
    assert step.state is state


@pytest.mark.ci
def test_it_learns_what_the_observation_asks_for():
    ctor = functools.partial(probes.ObservationPolicyEnv, "continuous")
    config = TrainerConfig(
        num_iterations=80,
        random_seed=0,
        unroll_length=4,
        num_updates_per_train_iter=4,
        mini_batch_size=32,
        mini_batch_length=3,
        initial_collect_steps=160,
        initial_random_policy=True,
        replay_buffer_length=1000,
    )
    algorithm = Tdmpc2Algorithm(
        env=create_environment(env_ctor=ctor, seed=0),
        config=config,
        optimizer=Adam(lr=3e-3, gradient_clipping=20.0),
        gamma=0.9,
        horizon=2,
        planner=Mppi(24, 6, 2),
        num_policy_trajectories=4,
        latent_size=16,
        encoder_fc_layer_params=(32,),
        fc_layer_params=(32,),
        num_critics=2,
    )
    for _ in range(80):
        algorithm.train_iter()
    env = create_environment(env_ctor=ctor, num_parallel_environments=10, seed=1)
    assert sum(evaluate(algorithm, env, 10).returns) / 10 > 0.85  # at random 0.45
    z = algorithm._encode(torch.tensor([[1.0], [-1.0]]))
    policy, _ = algorithm._model.act(z, None)
    assert (policy - torch.tensor([[0.5], [-0.5]])).abs().max() < 0.25
    # It knows that one step is all there is, though plans have two.
    following, _ = algorithm._model.step(z, policy)
    assert algorithm._model.goes_on(following).sigmoid().max() < 0.05


def test_what_it_cannot_do_is_refused():
    discrete = BoundedTensorSpec((), torch.int64, 0, 3)
    with pytest.raises(ValueError, match="boxes"):
        Tdmpc2Algorithm(_OBSERVATION, discrete, gamma=0.9)
    with pytest.raises(ConfigError, match="episode_length"):
        _algorithm(episode_length=100)
    with pytest.raises(ConfigError, match="episode_length"):
        _algorithm(gamma=None)
    for number in (-1, 16):
        planner = Mppi(num_samples=16, num_elites=4)
        with pytest.raises(
            ValueError, match=r"num_policy_trajectories .*num_samples=16"
        ):
            _algorithm(num_policy_trajectories=number, planner=planner)
    with pytest.raises(ValueError, match="simnorm_size"):
        _algorithm(latent_size=17)
    with pytest.raises(ConfigError, match=r"3 ahead \(horizon\) take 4 or more"):
        _algorithm(config=TrainerConfig(mini_batch_length=3, num_iterations=1))
    with pytest.raises(ValueError, match="at least 4 steps"):
        _algorithm().preprocess_experience(_steps(2, 3), (), BatchInfo())


@pytest.mark.parametrize("part", ["dynamics", "reward", "policy"])
def test_a_model_that_gives_nan_is_said(part):
    algorithm = _algorithm()
    torch.nn.init.constant_(getattr(algorithm._model, part)[0][0].weight, torch.nan)
    state = algorithm.get_initial_rollout_state(2)
    with pytest.raises(DivergedError, match=r"environments \[0, 1\]: the model has di"):
        algorithm.rollout_step(_steps(2), state)
