"""The table of losses: every algorithm, its equations, and what it supports."""

from __future__ import annotations

from alf_lite.algorithms.actor_critic_algorithm import ActorCriticAlgorithm
from alf_lite.algorithms.awac_algorithm import AwacAlgorithm
from alf_lite.algorithms.bc_algorithm import BcAlgorithm
from alf_lite.algorithms.cql_algorithm import CqlAlgorithm
from alf_lite.algorithms.cql_dqn_algorithm import CqlDqnAlgorithm
from alf_lite.algorithms.ddpg_algorithm import DdpgAlgorithm
from alf_lite.algorithms.dqfd_algorithm import DqfdAlgorithm
from alf_lite.algorithms.dqn_algorithm import DqnAlgorithm
from alf_lite.algorithms.edac_algorithm import EdacAlgorithm
from alf_lite.algorithms.impala_algorithm import ImpalaAlgorithm
from alf_lite.algorithms.iql_algorithm import IqlAlgorithm
from alf_lite.algorithms.munchausen_dqn_algorithm import MunchausenDqnAlgorithm
from alf_lite.algorithms.oac_algorithm import OacAlgorithm
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.algorithms.r2d2_algorithm import R2d2Algorithm
from alf_lite.algorithms.redq_algorithm import RedqAlgorithm
from alf_lite.algorithms.sac_algorithm import SacAlgorithm
from alf_lite.algorithms.sarsa_algorithm import SarsaAlgorithm
from alf_lite.algorithms.taac_algorithm import TaacAlgorithm
from alf_lite.algorithms.td3_algorithm import Td3Algorithm
from alf_lite.algorithms.td3_bc_algorithm import Td3BcAlgorithm
from alf_lite.algorithms.trac_sac_algorithm import TracSacAlgorithm
from tests.algorithms import naive_losses as naive
from tests.algorithms.loss_contract import GAMMA, Row

SAC = {"actor_network_ctor": "squashed", "critic_network_ctor": "critic"}
DDPG = {"actor_network_ctor": "deterministic", "critic_network_ctor": "critic"}
AWAC = {"actor_network_ctor": "normal", "critic_network_ctor": "critic"}
IQL = {**AWAC, "value_network_ctor": "critic"}
DQN = {"q_network_ctor": "q"}
A2C = {"actor_network_ctor": "distribution", "value_network_ctor": "value"}

# What is passed beside the networks: all that the equations name
GIVEN: dict = {"gamma": GAMMA}
CONSERVATIVE = {
    **GIVEN,
    "backup": "expected",
    "cql_alpha": 2.0,
    "cql_temperature": 1.0,
    "num_sampled_actions": 2,
}
SMOOTHED = {
    **GIVEN,
    "actor_update_period": 1,
    "target_noise_std": 0.6,
    "target_noise_clip": 0.5,
}
REGRESSION = {**GIVEN, "max_weight": 3.0, "action_margin": 0.0}
CLONING = {"action_margin": 0.0, "reward_weights": None}  # it uses no reward
ON_POLICY = {
    **GIVEN,
    "td_lambda": 0.8,
    "value_loss_weight": 0.25,
    "entropy_regularization": 0.1,
    "normalize_advantages": False,
}
PPO_OPTIONS = {**ON_POLICY, "clip_epsilon": 0.2, "normalize_advantages": True}
IMPALA_OPTIONS = {**ON_POLICY, "rho_clip": 1.0, "c_clip": 1.0}

# What is supported
BOX = {"actions": ("box",), "masked": False}
CHOICES = {"actions": ("choice", "pair")}
NO_MEMORY = {"memory": (False,)}
OF_ROLLOUT = {"n": (1,)}
VARIANT = {"memory": (False,), "n": (1,)}  # the rest is that of another row

ROWS = {
    "SAC": Row(SacAlgorithm, naive.sac, SAC, GIVEN),
    "REDQ": Row(
        RedqAlgorithm,
        naive.redq,
        SAC,
        {
            **GIVEN,
            "num_critics": 3,
            "num_target_critics": 3,
            "actor_update_period": 1,
        },
        n=(1,),
    ),
    "EDAC": Row(
        EdacAlgorithm,
        naive.edac,
        SAC,
        {**GIVEN, "num_critics": 3, "diversity_weight": 2.0},
        actions=("box", "mixed"),
    ),
    "TRAC around SAC": Row(
        TracSacAlgorithm, naive.sac, SAC, GIVEN, memory=(False,), n=(1,)
    ),
    "OAC": Row(OacAlgorithm, naive.sac, SAC, GIVEN, **BOX),
    "TAAC": Row(TaacAlgorithm, naive.taac, SAC, GIVEN, **BOX, memory=(False,), n=(1,)),
    "CQL": Row(CqlAlgorithm, naive.cql, SAC, CONSERVATIVE),
    "DDPG": Row(DdpgAlgorithm, naive.ddpg, DDPG, {**GIVEN, "action_l2": 0.1}, **BOX),
    "TD3": Row(Td3Algorithm, naive.td3, DDPG, SMOOTHED, **BOX),
    "TD3+BC": Row(
        Td3BcAlgorithm, naive.td3_bc, DDPG, {**SMOOTHED, "bc_alpha": 2.5}, **BOX
    ),
    "IQL": Row(
        IqlAlgorithm, naive.iql, IQL, {**REGRESSION, "expectile": 0.8, "beta": 2.0}
    ),
    "AWAC": Row(AwacAlgorithm, naive.awac, AWAC, {**REGRESSION, "temperature": 0.5}),
    "BC": Row(
        BcAlgorithm,
        naive.bc,
        {"actor_network_ctor": "normal"},
        {**CLONING, "entropy_regularization": 0.1},
        n=(1,),
    ),
    "BC of a deterministic policy": Row(
        BcAlgorithm,
        naive.bc_deterministic,
        {"actor_network_ctor": "deterministic"},
        {**CLONING, "deterministic": True},
        **BOX,
        n=(1,),
    ),
    "DQN": Row(DqnAlgorithm, naive.dqn, DQN, {**GIVEN, "double": True}, **CHOICES),
    "R2D2": Row(
        R2d2Algorithm,
        naive.r2d2,
        DQN,
        {**GIVEN, "max_priority_weight": 0.7},
        **CHOICES,
        memory=(True,),
    ),
    "Munchausen DQN": Row(
        MunchausenDqnAlgorithm,
        naive.munchausen,
        DQN,
        {
            **GIVEN,
            "munchausen_alpha": 0.8,
            "munchausen_temperature": 0.5,
            "munchausen_clipping": -0.5,
        },
        **CHOICES,
        **NO_MEMORY,
    ),
    "SARSA": Row(
        SarsaAlgorithm, naive.sarsa, DQN, GIVEN, **CHOICES, **NO_MEMORY, lookahead=1
    ),
    "expected SARSA": Row(
        SarsaAlgorithm,
        naive.expected_sarsa,
        DQN,
        {**GIVEN, "expected": True, "rollout_epsilon_greedy": 0.3},
        **CHOICES,
        **NO_MEMORY,
    ),
    "CQL-DQN": Row(
        CqlDqnAlgorithm,
        naive.cql_dqn,
        DQN,
        {**GIVEN, "double": True, "cql_alpha": 3.0, "cql_temperature": 0.5},
        **CHOICES,
    ),
    "DQfD": Row(
        DqfdAlgorithm,
        naive.dqfd,
        DQN,
        {**GIVEN, "double": True, "margin": 0.5, "margin_weight": 2.0},
        **CHOICES,
    ),
    "A2C": Row(ActorCriticAlgorithm, naive.a2c, A2C, ON_POLICY, **OF_ROLLOUT),
    "PPO": Row(PPOAlgorithm, naive.ppo, A2C, PPO_OPTIONS, **OF_ROLLOUT),
    "IMPALA": Row(ImpalaAlgorithm, naive.impala, A2C, IMPALA_OPTIONS, **OF_ROLLOUT),
}
# Other options of these, and not all that they support
VARIANTS = {
    "SAC of three critics": Row(
        SacAlgorithm, naive.sac, SAC, {**GIVEN, "num_critics": 3}, **VARIANT
    ),
    "SAC with λ-returns": Row(
        SacAlgorithm, naive.sac_lambda, SAC, {**GIVEN, "td_lambda": 0.7}, n=(1,)
    ),
    "DDPG with λ-returns": Row(
        DdpgAlgorithm,
        naive.ddpg,
        DDPG,
        {**GIVEN, "td_lambda": 0.7, "action_l2": 0.0},
        **{**BOX, "n": (1,)},
    ),
    "SAC without entropy in targets": Row(
        SacAlgorithm,
        naive.sac_without_bonus,
        SAC,
        {**GIVEN, "use_entropy_reward": False},
        **VARIANT,
    ),
    "SAC with a target of its own": Row(
        SacAlgorithm,
        naive.sac,
        SAC,
        {**GIVEN, "discrete_target_entropy": 0.2},
        actions=("choice", "pair", "mixed"),
        **VARIANT,
    ),
    "CQL with soft targets and a threshold": Row(
        CqlAlgorithm,
        naive.cql,
        SAC,
        {**CONSERVATIVE, "backup": "soft", "cql_threshold": 0.5},
        **VARIANT,
    ),
    "CQL with the best values as targets": Row(
        CqlAlgorithm,
        naive.cql,
        SAC,
        {**CONSERVATIVE, "backup": "max", "cql_temperature": 0.7},
        **VARIANT,
    ),
    "DQN that is not double": Row(
        DqnAlgorithm, naive.dqn, DQN, {**GIVEN, "double": False}, **CHOICES
    ),
    "CQL-DQN with a threshold": Row(
        CqlDqnAlgorithm,
        naive.cql_dqn,
        DQN,
        {**GIVEN, "double": True, "cql_threshold": 0.5, "cql_temperature": 1.0},
        **CHOICES,
        **VARIANT,
    ),
    "A2C with normalized advantages": Row(
        ActorCriticAlgorithm,
        naive.a2c,
        A2C,
        {**ON_POLICY, "normalize_advantages": True},
        **VARIANT,
    ),
    "PPO with limited values": Row(
        PPOAlgorithm,
        naive.ppo,
        A2C,
        {**PPO_OPTIONS, "value_clip": 0.1, "clip_epsilon": 0.05},
        **VARIANT,
    ),
    "IMPALA with wide clips": Row(
        ImpalaAlgorithm,
        naive.impala,
        A2C,
        {
            **IMPALA_OPTIONS,
            "rho_clip": 1.2,
            "c_clip": 0.9,
            "normalize_advantages": True,
        },
        **VARIANT,
    ),
}
ALL = ROWS | VARIANTS
