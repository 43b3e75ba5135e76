from __future__ import annotations

import math

import pytest
import torch

from alf_lite.distributions.action_noise import GaussianNoise, OrnsteinUhlenbeckNoise
from alf_lite.utils.progress import progress
from alf_lite.utils.recurrent_state import reset_state
from alf_lite.utils.schedulers import LinearScheduler


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    progress.reset()
    yield
    progress.reset()


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


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="std must not be negative"):
        GaussianNoise(1, std=-0.1)
    with pytest.raises(ValueError, match=r"damping must lie in \(0, 1\], got 0"):
        OrnsteinUhlenbeckNoise(1, damping=0.0)
