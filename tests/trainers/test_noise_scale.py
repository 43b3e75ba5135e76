from __future__ import annotations

import json
import math

import pytest
import torch

import alf_lite
from alf_lite.errors import ConfigError
from alf_lite.trainers.noise_scale import GradientNoiseScale, NoiseScale


@pytest.mark.parametrize("spread", [0.1, 1.0])
def test_the_estimate_is_the_spread_of_gradients_over_their_mean(spread):
    torch.manual_seed(0)
    mean = [torch.randn(3, 4), torch.randn(5)]
    scale = NoiseScale(num_updates=10, decay=0.99)
    assert math.isnan(scale.value)
    for _ in range(3000):
        gradients = [g + spread * torch.randn_like(g) for g in mean]
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        scale(gradients, norm)
        scale(gradients[:1], norm)  # of an update of some parameters alone
    expected = spread**2 * 17 / sum(g.square().sum().item() for g in mean)
    assert scale.value == pytest.approx(expected, rel=0.15)


def trained(root_dir, hooks, **settings):
    config = alf_lite.TrainerConfig(
        **{"num_iterations": 4, "unroll_length": 16, "mini_batch_size": 8},
        **{"epochs": 3, "random_seed": 1, "summary_interval": 1, **settings},
    )
    env = alf_lite.create_environment("CartPole-v1", 2, seed=0)
    algorithm = alf_lite.PPOAlgorithm(env=env, config=config)
    alf_lite.Trainer(algorithm, root_dir=root_dir, hooks=hooks).train()
    lines = (root_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return algorithm, [json.loads(line) for line in lines]


def test_a_run_is_what_it_was_and_the_noise_is_logged(tmp_path):
    hook = GradientNoiseScale(num_updates=3)
    algorithm, lines = trained(tmp_path / "with", [hook])
    plain, others = trained(tmp_path / "without", [])
    torch.testing.assert_close(algorithm.state_dict(), plain.state_dict())
    (name,) = {k for line in lines for k in line if k.endswith("/noise_scale")}
    assert name == "optimizer/root/noise_scale"
    assert all(line.get(name, 1.0) > 0 for line in lines)
    assert name not in {k for line in others for k in line}
    assert hook.scales == {}
    (optimizer,) = (optimizer for _, optimizer in algorithm.optimizers())
    assert not optimizer._watchers


def test_what_cannot_be_is_refused():
    for arguments in ({"num_updates": 1}, {"decay": 1.0}):
        with pytest.raises(ConfigError, match="expected num_updates of 2 or more"):
            GradientNoiseScale(**arguments)
