from __future__ import annotations

import math

import pytest
import torch

from alf_lite.distributions.exploration import (
    EpsilonGreedy,
    GaussianNoise,
    OrnsteinUhlenbeckNoise,
    SpreadGaussianNoise,
    choose,
    epsilon_greedy,
    masked_argmax,
    random_index,
    toss_coins,
)
from alf_lite.utils.progress import Progress
from alf_lite.utils.schedulers import LinearScheduler
from alf_lite.utils.tensor_utils import reset_state

NUM_ROWS = 20_000
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def values(num_components: int = 1) -> torch.Tensor:
    """The best value is the third of four."""
    return torch.tensor([0.0, -1.0, 2.0, 1.0]).expand(NUM_ROWS, num_components, 4)


def within_three_sigma(fraction: float, p: float, n: int = NUM_ROWS) -> bool:
    return abs(fraction - p) <= 3 * math.sqrt(p * (1 - p) / n)


def test_rows_explore_independently_within_one_call():
    index = epsilon_greedy(values(), 0.2)
    assert index.shape == (NUM_ROWS, 1)
    # A random value is the best one in a quarter of the cases.
    assert within_three_sigma((index != 2).float().mean().item(), 0.15)
    for value in (0, 1, 3):
        assert within_three_sigma((index == value).float().mean().item(), 0.05)


def test_components_explore_independently():
    index = epsilon_greedy(values(num_components=2), 0.5)
    explored = index != 2
    both = explored.all(1).float().mean().item()
    assert within_three_sigma(both, 0.375**2)
    assert within_three_sigma(explored[:, 1].float().mean().item(), 0.375)


def test_epsilon_0_is_greedy_and_draws_nothing():
    state = torch.get_rng_state()
    assert (epsilon_greedy(values(), 0.0) == 2).all()
    assert torch.equal(torch.get_rng_state(), state)


def test_epsilon_1_is_uniform():
    index = epsilon_greedy(values(), 1.0)
    for value in range(4):
        assert within_three_sigma((index == value).float().mean().item(), 0.25)


@pytest.mark.parametrize("num_rows", [1, 3, NUM_ROWS])
def test_epsilon_may_be_an_integer_as_confs_write_it(num_rows):
    assert (epsilon_greedy(values()[:num_rows], 0) == 2).all()
    index = torch.cat([epsilon_greedy(values()[:num_rows], 1) for _ in range(100)])
    assert 0.5 < (index != 2).float().mean() < 1


def test_masked_values_are_never_chosen():
    allowed = torch.tensor([True, True, False, True])
    index = epsilon_greedy(values(), 0.4, allowed)
    assert not (index == 2).any()
    # Greedy: 3. Random: 0, 1 and 3 alike.
    assert within_three_sigma((index == 3).float().mean().item(), 0.6 + 0.4 / 3)
    assert within_three_sigma((index == 0).float().mean().item(), 0.4 / 3)


def test_a_mask_may_differ_from_row_to_row():
    allowed = torch.rand(NUM_ROWS, 1, 4) < 0.5
    allowed[..., 1] = True
    index = epsilon_greedy(values(), 0.5, allowed)
    assert allowed.gather(-1, index.unsqueeze(-1)).all()
    greedy = masked_argmax(values(), allowed)
    best = values().masked_fill(~allowed, -10).amax(-1)
    assert (values().gather(-1, greedy.unsqueeze(-1)).squeeze(-1) == best).all()


def test_random_values_are_uniform_among_the_allowed_ones():
    shape = torch.Size((NUM_ROWS, 2))
    for allowed in (None, torch.tensor([True, False, True])):
        index = random_index(shape, 3, allowed)
        num_allowed = 3 if allowed is None else 2
        for value in range(3):
            is_allowed = allowed is None or bool(allowed[value])
            fraction = (index == value).float().mean().item()
            p = is_allowed / num_allowed
            assert within_three_sigma(fraction, p, 2 * NUM_ROWS)


def test_rows_may_have_an_epsilon_each():
    epsilon = [0.0] * 10_000 + [1.0] * 10_000
    explores = toss_coins(epsilon, torch.Size((NUM_ROWS, 2)), CPU)
    assert not explores[:10_000].any()
    assert explores[10_000:].all()
    index = choose(values(num_components=2), explores, None)
    assert (index[:10_000] == 2).all()
    assert within_three_sigma(
        (index[10_000:, 0] == 2).float().mean().item(), 0.25, 10_000
    )


@pytest.mark.parametrize("epsilon", [0.3, [0.3] * 3])
def test_few_coins_fall_as_many_do(epsilon):
    """Here the answer may be known to be the same for all."""
    shape = torch.Size((3, 2))
    counts = dict.fromkeys(range(7), 0)
    for _ in range(4000):
        explores = toss_coins(epsilon, shape, CPU)
        if isinstance(explores, bool):
            explores = torch.full(shape, explores)
        else:
            assert 0 < explores.sum() < 6
        counts[int(explores.sum())] += 1
    for count, occurrences in counts.items():
        p = math.comb(6, count) * 0.3**count * 0.7 ** (6 - count)
        assert within_three_sigma(occurrences / 4000, p, 4000)


def test_the_schedule_is_read_at_every_call():
    explore = EpsilonGreedy(LinearScheduler([(0, 1.0), (10_000, 0.05)], "env_steps"))
    progress = Progress()
    explore.follow(progress)
    for env_steps, epsilon in ((0, 1.0), (2500, 0.7625), (5000, 0.525), (20_000, 0.05)):
        progress.env_steps = env_steps
        explores = explore.toss(torch.Size((NUM_ROWS, 1)), CPU)
        assert within_three_sigma(explores.float().mean().item(), epsilon)


def test_points_are_one_schedule_over_the_run_or_one_for_each_environment():
    progress = Progress()
    points = ((0.0, 1.0), (0.5, 0.0))
    for epsilon in (points, [points, 0.5]):
        explore = EpsilonGreedy(epsilon)
        explore.follow(progress)
        for percent, expected in ((0.0, 1.0), (0.25, 0.5), (1.0, 0.0)):
            progress.percent = percent
            if epsilon is points:
                assert explore.epsilon == pytest.approx(expected)
            else:
                assert explore._current() == pytest.approx([expected, 0.5])


def test_every_environment_may_have_its_schedule():
    explore = EpsilonGreedy([0.0, 1.0])
    explores = explore.toss(torch.Size((2, 1000)), CPU)
    assert not explores[0].any()
    assert explores[1].all()
    with pytest.raises(ValueError, match="2 values were given for a batch of 3"):
        explore.toss(torch.Size((3, 1)), CPU)
    with pytest.raises(ValueError, match="2 values were given for a batch of 3"):
        EpsilonGreedy([0.0, 1.0]).check_number(3)


def test_some_of_the_environments_have_their_own_epsilon():
    explore = EpsilonGreedy([0.0, 0.5, 1.0, 0.0])
    env_ids = torch.tensor([2, 3], dtype=torch.int32)
    explores = explore.toss(torch.Size((2, 1)), CPU, env_ids)
    assert explores.tolist() == [[True], [False]]


@pytest.mark.parametrize(
    "epsilon",
    [-0.1, 1.1, [0.5, 2.0], LinearScheduler([(0.0, 1.0), (0.5, -0.1), (1.0, 0.1)])],
)
def test_an_epsilon_out_of_range_is_refused(epsilon):
    with pytest.raises(ValueError, match=r"epsilon must lie in \[0, 1\]"):
        EpsilonGreedy(epsilon)


def test_a_deviation_that_becomes_negative_is_refused():
    with pytest.raises(ValueError, match=r"std must not be negative, got -0\.1"):
        GaussianNoise(3, std=((0.0, 0.5), (1.0, -0.1)))


def test_gaussian_noise_has_its_deviation_and_no_state():
    noise = GaussianNoise(3, std=0.1)
    assert noise.state_spec == ()
    action, state = noise.perturb(torch.full((20_000, 3), 0.2), ())
    assert state == ()
    assert action.mean().item() == pytest.approx(0.2, abs=0.002)
    assert action.std().item() == pytest.approx(0.1, rel=0.02)


def test_noisy_actions_stay_between_their_bounds():
    action, _ = GaussianNoise(2, std=1.0).perturb(torch.full((1000, 2), 0.9), ())
    assert action.max() == 1.0
    assert action.min() == -1.0


def test_the_deviation_may_have_a_schedule():
    noise = GaussianNoise(1, std=LinearScheduler([(0.0, 0.4), (1.0, 0.0)]))
    zeros = torch.zeros(20_000, 1)
    progress = Progress()
    noise.follow(progress)
    progress.percent = 0.5
    assert noise.perturb(zeros, ())[0].std().item() == pytest.approx(0.2, rel=0.02)
    progress.percent = 1.0
    assert (noise.perturb(zeros, ())[0] == 0).all()


def run(noise: OrnsteinUhlenbeckNoise, num_rows: int, num_steps: int) -> torch.Tensor:
    """[T, B, size], the noise from the start of an episode."""
    state = noise.state_spec.zeros((num_rows,))
    rows = []
    for _ in range(num_steps):
        action, state = noise.perturb(torch.zeros(num_rows, 1), state)
        torch.testing.assert_close(action, state.clamp(-1, 1))
        rows.append(state)
    return torch.stack(rows)


def test_ornstein_uhlenbeck_noise_has_the_moments_of_its_equation():
    theta, sigma = 0.25, 0.1
    noise = run(OrnsteinUhlenbeckNoise(1, std=sigma, damping=theta), 20_000, 40)
    keep = 1 - theta
    for t in (0, 1, 3, 39):
        variance = sigma**2 * sum(keep ** (2 * k) for k in range(t + 1))
        assert noise[t].std().item() == pytest.approx(math.sqrt(variance), rel=0.03)
    x, y = noise[38, :, 0], noise[39, :, 0]
    correlation = torch.corrcoef(torch.stack([x, y]))[0, 1].item()
    assert correlation == pytest.approx(keep, abs=0.02)


def test_ornstein_uhlenbeck_noise_follows_its_equation_step_by_step():
    noise = OrnsteinUhlenbeckNoise(2, std=0.3, damping=0.2)
    state = torch.tensor([[1.0, -2.0], [0.0, 0.5]])
    generator_state = torch.get_rng_state()
    action, new_state = noise.perturb(torch.tensor([[0.1, 0.2], [0.3, 0.9]]), state)
    torch.set_rng_state(generator_state)
    x = 0.8 * state + 0.3 * torch.randn(2, 2)
    torch.testing.assert_close(new_state, x)
    expected = (torch.tensor([[0.1, 0.2], [0.3, 0.9]]) + x).clamp(-1, 1)
    torch.testing.assert_close(action, expected)


def test_only_the_environments_at_a_first_step_start_anew():
    noise = OrnsteinUhlenbeckNoise(1, std=0.0, damping=0.5)
    state = torch.tensor([[0.8], [0.4]])
    state = reset_state(state, torch.zeros(2, 1), torch.tensor([True, False]))
    _, state = noise.perturb(torch.zeros(2, 1), state)
    torch.testing.assert_close(state, torch.tensor([[0.0], [0.2]]))


def test_each_episode_has_noise_of_its_own_strength():
    noise = SpreadGaussianNoise(500, min_std=0.02, max_std=0.1)
    state = noise.state_spec.zeros((400,))
    first, stds = noise.perturb(torch.zeros(400, 500), state)
    assert 0.02 <= stds.min() < 0.03
    assert 0.09 < stds.max() <= 0.1
    assert stds.mean().item() == pytest.approx(0.06, abs=0.004)  # evenly
    torch.testing.assert_close(first.std(1), stds, rtol=0.15, atol=0)
    is_first = torch.arange(400) < 200
    state = reset_state(stds, noise.state_spec.zeros((400,)), is_first)
    second, again = noise.perturb(torch.zeros(400, 500), state)
    assert not (first == second).any()
    assert torch.equal(again[200:], stds[200:])
    assert not (again[:200] == stds[:200]).any()


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="expected 0 < min_std <= max_std"):
        SpreadGaussianNoise(1, min_std=0.0)
    with pytest.raises(ValueError, match="expected 0 < min_std <= max_std"):
        SpreadGaussianNoise(1, min_std=0.5, max_std=0.4)
    with pytest.raises(ValueError, match="std must not be negative"):
        GaussianNoise(1, std=-0.1)
    with pytest.raises(ValueError, match=r"damping must lie in \(0, 1\], got 0"):
        OrnsteinUhlenbeckNoise(1, damping=0.0)
