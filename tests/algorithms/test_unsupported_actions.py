"""An algorithm that cannot handle an action names others, of which one can."""

from __future__ import annotations

import functools
import re

import pytest
import torch

from alf_lite.algorithms.awac_algorithm import AwacAlgorithm
from alf_lite.algorithms.bc_algorithm import BcAlgorithm
from alf_lite.algorithms.cql_algorithm import CqlAlgorithm
from alf_lite.algorithms.cql_dqn_algorithm import CqlDqnAlgorithm
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.algorithms.dqfd_algorithm import DqfdAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.iql_algorithm import IqlAlgorithm
from alf_lite.algorithms.mbrl_algorithm import MbrlAlgorithm
from alf_lite.algorithms.muzero_algorithm import MuzeroAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.algorithms.td3_bc_algorithm import Td3BcAlgorithm
from alf_lite.algorithms.tdmpc2_algorithm import Tdmpc2Algorithm
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

ALGORITHMS = {
    cls.__name__: cls
    for cls in (
        AwacAlgorithm,
        BcAlgorithm,
        CqlAlgorithm,
        CqlDqnAlgorithm,
        DdpgAlgorithm,
        DqfdAlgorithm,
        DqnAlgorithm,
        IqlAlgorithm,
        MbrlAlgorithm,
        MuzeroAlgorithm,
        PPOAlgorithm,
        SacAlgorithm,
        Td3Algorithm,
        Td3BcAlgorithm,
    )
}
ALGORITHMS["Tdmpc2Algorithm"] = functools.partial(Tdmpc2Algorithm, gamma=0.9)

DISCRETE = BoundedTensorSpec((), torch.int64, 0, 2)
SWITCHES = BoundedTensorSpec((18,), torch.int64, 0, 1)  # 262144 joint values
BOX = BoundedTensorSpec((2,), torch.float32, -1, 1)
MIXED = {"arm": BOX, "grip": DISCRETE}
UNBOUNDED = TensorSpec((2,))

Q_LEARNING = ("DqnAlgorithm", "CqlDqnAlgorithm", "DqfdAlgorithm")


@pytest.mark.parametrize(
    ("name", "action_spec"),
    [
        *[(name, BOX) for name in Q_LEARNING],
        *[(name, MIXED) for name in Q_LEARNING],
        ("DqnAlgorithm", UNBOUNDED),
        *[
            (name, spec)
            for name in ("DdpgAlgorithm", "Td3Algorithm", "Td3BcAlgorithm")
            for spec in (DISCRETE, SWITCHES, MIXED, UNBOUNDED)
        ],
        *[
            (name, spec)
            for name in ("SacAlgorithm", "CqlAlgorithm", "IqlAlgorithm")
            for spec in (SWITCHES, UNBOUNDED)
        ],
        *[("AwacAlgorithm", spec) for spec in (SWITCHES, UNBOUNDED)],
        *[("MuzeroAlgorithm", spec) for spec in (SWITCHES, MIXED, UNBOUNDED)],
        *[
            (name, spec)
            for name in ("MbrlAlgorithm", "Tdmpc2Algorithm")
            for spec in (DISCRETE, MIXED, UNBOUNDED)
        ],
    ],
)
def test_an_algorithm_that_can_is_named(name, action_spec):
    with pytest.raises(ValueError, match="action") as error:
        ALGORITHMS[name](TensorSpec((3,)), action_spec)
    named = set(re.findall(r"\b\w+Algorithm\b", str(error.value))) - {name}
    assert any(_can_handle(other, action_spec) for other in named), error.value
    assert f"{name} for " not in str(error.value)


def _can_handle(name: str, action_spec) -> bool:
    try:
        ALGORITHMS[name](TensorSpec((3,)), action_spec)
    except ValueError:
        return False
    return True
