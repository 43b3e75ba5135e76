# Written by `python -m tests.stubs`.

from alf_lite.algorithms import (
    ActorCriticAlgorithm as ActorCriticAlgorithm,
    Agent as Agent,
    Algorithm as Algorithm,
    AlphaZeroAlgorithm as AlphaZeroAlgorithm,
    AwacAlgorithm as AwacAlgorithm,
    BcAlgorithm as BcAlgorithm,
    CqlAlgorithm as CqlAlgorithm,
    CqlDqnAlgorithm as CqlDqnAlgorithm,
    CrossqAlgorithm as CrossqAlgorithm,
    DdpgAlgorithm as DdpgAlgorithm,
    DistillationAlgorithm as DistillationAlgorithm,
    DqfdAlgorithm as DqfdAlgorithm,
    DqnAlgorithm as DqnAlgorithm,
    EdacAlgorithm as EdacAlgorithm,
    ImpalaAlgorithm as ImpalaAlgorithm,
    IqlAlgorithm as IqlAlgorithm,
    MbrlAlgorithm as MbrlAlgorithm,
    MunchausenDqnAlgorithm as MunchausenDqnAlgorithm,
    MuzeroAlgorithm as MuzeroAlgorithm,
    OacAlgorithm as OacAlgorithm,
    OffPolicyActorCriticAlgorithm as OffPolicyActorCriticAlgorithm,
    OffPolicyAlgorithm as OffPolicyAlgorithm,
    PPGAlgorithm as PPGAlgorithm,
    PPOAlgorithm as PPOAlgorithm,
    PathwiseActorCriticAlgorithm as PathwiseActorCriticAlgorithm,
    PlanningAlgorithm as PlanningAlgorithm,
    PqnAlgorithm as PqnAlgorithm,
    QLearningAlgorithm as QLearningAlgorithm,
    R2d2Algorithm as R2d2Algorithm,
    RLAlgorithm as RLAlgorithm,
    RedqAlgorithm as RedqAlgorithm,
    SacAlgorithm as SacAlgorithm,
    SarsaAlgorithm as SarsaAlgorithm,
    TaacAlgorithm as TaacAlgorithm,
    Td3Algorithm as Td3Algorithm,
    Td3BcAlgorithm as Td3BcAlgorithm,
    Tdmpc2Algorithm as Tdmpc2Algorithm,
    TqcAlgorithm as TqcAlgorithm,
    TracSacAlgorithm as TracSacAlgorithm,
    TrainedPolicy as TrainedPolicy,
)
from alf_lite.config import TrainerConfig as TrainerConfig, configurable as configurable
from alf_lite.data_structures import StepType as StepType, TimeStep as TimeStep
from alf_lite.environments import create_environment as create_environment
from alf_lite.optimizers import Adam as Adam
from alf_lite.policies.trained_policy import (
    evaluate as evaluate,
    load_policy as load_policy,
)
from alf_lite.runs.curves import read_curves as read_curves
from alf_lite.tools.env_check import check_env as check_env
from alf_lite.tools.policy_export import export_policy as export_policy
from alf_lite.trainers import Trainer as Trainer, train as train

__version__: str
