"""The twins of a conf run, and no others; see :mod:`tests.fast.twins`."""

from __future__ import annotations

import pytest

from alf_lite.utils.threads import is_single_threaded
from tests.fast.twins import frozen_confs, stored, twins_of

QUICK = ("ac_cart_pole", "dqn_cart_pole", "ppo_cart_pole", "sac_pendulum")
STORED = stored()


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "conf",
    [
        pytest.param(c, id=c.stem, marks=() if c.stem in QUICK else pytest.mark.slow)
        for c in frozen_confs()
    ],
)
def test_the_twins_of_a_conf_run(conf):
    if not is_single_threaded():
        pytest.skip("with several threads, large products are left to torch")
    assert twins_of(conf) == STORED[conf.stem]


def test_every_conf_is_in_the_table():
    assert {conf.stem for conf in frozen_confs()} <= set(STORED)
