"""Runs of a second or two that do everything a long one does."""

from __future__ import annotations

PPO = """
import tests.reliability.disturbance

create_environment.env_name = "CartPole-v1"
create_environment.num_parallel_environments = 2

TrainerConfig:
  algorithm_ctor = @PPOAlgorithm
  random_seed = 7
  num_iterations = 50
  num_checkpoints = 10
  summary_interval = 5
  summaries_flush_secs = 0.1
  unroll_length = 8
  mini_batch_length = 1
  mini_batch_size = 8
  num_updates_per_train_iter = 1
  evaluate = False
  hook_ctors = [@Disturbance]

PPOAlgorithm.optimizer = @Adam()
Adam.lr = 0.001
ActorDistributionNetwork.fc_layer_params = (8,)
ValueNetwork.fc_layer_params = (8,)
"""

SAC = """
import tests.reliability.disturbance

create_environment.env_name = "Pendulum-v1"
create_environment.num_parallel_environments = 2

TrainerConfig:
  algorithm_ctor = @SacAlgorithm
  random_seed = 7
  num_iterations = 50
  num_checkpoints = 10
  checkpoint_replay_buffer = True
  summary_interval = 5
  summaries_flush_secs = 0.1
  initial_collect_steps = 20
  initial_random_policy = True
  replay_buffer_length = 70  # goes round within the run
  unroll_length = 1
  mini_batch_size = 8
  mini_batch_length = 2
  evaluate = False
  hook_ctors = [@Disturbance]

SacAlgorithm.optimizer = @Adam()
Adam.lr = 0.001
CriticNetwork.joint_fc_layer_params = (8,)
SquashedActorNetwork.fc_layer_params = (8,)
"""

REPLAY_SAVER = SAC.replace("[@Disturbance]", "[@Disturbance, @ReplaySaver]")
REPLAY_SAVER += """
ReplaySaver.interval = 7
ReplaySaver.keep = 2
"""

ASYNC = """
import tests.reliability.disturbance

create_environment.env_name = "CartPole-v1"
create_environment.num_parallel_environments = 2

TrainerConfig:
  algorithm_ctor = @ImpalaAlgorithm
  random_seed = 7
  num_iterations = 300
  num_checkpoints = 30
  summary_interval = 5
  summaries_flush_secs = 0.1
  unroll_length = 8
  async_unroll = True
  num_unroll_workers = 2
  evaluate = False
  hook_ctors = [@Disturbance]

ImpalaAlgorithm.optimizer = @Adam()
Adam.lr = 0.001
ActorDistributionNetwork.fc_layer_params = (8,)
ValueNetwork.fc_layer_params = (8,)
"""

CONFS = {
    "ppo": PPO,
    "sac": SAC,
    "replay_saver": REPLAY_SAVER,
    "async": ASYNC,
}
