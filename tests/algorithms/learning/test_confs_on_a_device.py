"""Shipped confs on a device that is none: as they are, and by captured graphs."""

from __future__ import annotations

import pytest
import torch

from alf_lite.errors import ConfigError
from tests.short_confs import CONFS, full_text, missing_extras, shortened, trained
from tests.source_code import ROOT

# Games and plans that are searched by tree take a minute each, operation by operation.
CASES = [conf.stem for conf in CONFS if "zero" not in conf.stem]
# With environments in torch, and with a head that most updates leave alone.
QUICK = ["torch_td3_pendulum", "ppg_cart_pole"]
WITH_MEMORY = [
    *("distillation_pendulum", "ppo_recurrent_cart_pole", "r2d2_cart_pole"),
    *("sac_asymmetric_pendulum", "sac_recurrent_pendulum"),
]
# A graph draws a goal or the coins of ε at every step, and what others draw comes after
# it; steps of workers come in an order of their own.
OF_ANOTHER_ORDER = ["diayn_point", "rainbow_lunar_lander"]
# Learning rates, coefficients and ε that change are float32 there.
_TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore:.* outside of its bounds")
@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES],
)
def test_a_conf_trains_and_graphs_learn_the_same(name, device, tmp_path):
    conf = next(conf for conf in CONFS if conf.stem == name)
    if missing := missing_extras(full_text(ROOT / conf)):
        pytest.skip(f"needs the extra {missing[0]}")
    shorter = [
        *shortened(conf, tmp_path, 10),
        f"TrainerConfig.device = '{device.name}'",
        "TrainerConfig.precision = 'float32'",  # the device has no other
        "TrainerConfig.summarize_first_interval = False",  # without graphs
    ]
    by_graphs = [*shorter, "TrainerConfig.cuda_graphs = True"]
    if name in WITH_MEMORY:  # the device has no such cells
        with pytest.raises(ConfigError, match="a network with memory asks"):
            trained(conf, by_graphs, tmp_path / "graphs")
        return
    plain = trained(conf, shorter, tmp_path / "plain")
    assert plain.training_run.updates.num_graphs == 0
    captured = trained(conf, by_graphs, tmp_path / "graphs")
    assert captured.training_run.updates.num_graphs or captured.num_updates < 5
    if name in OF_ANOTHER_ORDER or "async_unroll = True" in full_text(ROOT / conf):
        return
    expected = plain.state_dict()
    for key, value in captured.state_dict().items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(
                value.cpu(), expected[key].cpu(), **_TOLERANCE, equal_nan=True, msg=key
            )
