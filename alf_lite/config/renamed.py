"""What the settings of ALF and DI-engine are called here.

One table for all: the key is what people write who come from there, the value the name
here, or a sentence where there is no such setting.
"""

from __future__ import annotations

# Configurable there → configurable here.
CONFIGURABLES = {
    "PPOLoss": "PPOAlgorithm",
    "ActorCriticLoss": "ActorCriticAlgorithm",
    "PPG": "PPOAlgorithm",
    "OneStepTDLoss": "DqnAlgorithm",
    "TDLoss": "DqnAlgorithm",
    "OUProcess": "OrnsteinUhlenbeckNoise",
    "HindsightExperienceReplay": "HindsightExperienceTransformer",
    "ActorDistributionRNNNetwork": "LSTMEncodingNetwork",
    "ValueRNNNetwork": "LSTMEncodingNetwork",
    "LSTMEncodingRNN": "LSTMEncodingNetwork",
    "NormalProjectionNetwork": "ActorDistributionNetwork",
    "ReplayBuffer": "StorageOptions",
    "A2CPolicy": "ActorCriticAlgorithm",
    "PPOPolicy": "PPOAlgorithm",
    "IMPALAPolicy": "ImpalaAlgorithm",
    "DQNPolicy": "DqnAlgorithm",
    "SACPolicy": "SacAlgorithm",
    "DDPGPolicy": "DdpgAlgorithm",
    "TD3Policy": "Td3Algorithm",
    "TD3BCPolicy": "Td3BcAlgorithm",
    "CQLPolicy": "CqlAlgorithm",
    "DiscreteCQLPolicy": "CqlDqnAlgorithm",
    "IQLPolicy": "IqlAlgorithm",
    "BehaviourCloningPolicy": "BcAlgorithm",
}

# Parameter there, of whichever configurable → `Configurable.parameter` here, with a
# remark after a colon; or, beginning with a space, why there is none.
PARAMETERS = {
    # How long and how often
    "num_evals": "TrainerConfig.eval_interval: iterations from one to the next",
    "num_summaries": "TrainerConfig.summary_interval: iterations from one to the next",
    "eval_freq": "TrainerConfig.eval_interval: iterations",
    "n_evaluator_episode": "TrainerConfig.num_eval_episodes",
    "evaluator_env_num": "TrainerConfig.num_eval_environments",
    "stop_value": "TrainerConfig.early_stop_return",
    "max_env_step": "TrainerConfig.num_env_steps",
    "total_timesteps": "TrainerConfig.num_env_steps",
    "max_train_iter": "TrainerConfig.num_iterations",
    "seed": "TrainerConfig.random_seed",
    "exp_name": "TrainerConfig.root_dir",
    "cuda": 'TrainerConfig.device: "cuda"',
    "env_num": "create_environment.num_parallel_environments",
    "collector_env_num": "create_environment.num_parallel_environments",
    "num_envs": "create_environment.num_parallel_environments",
    "env_id": "create_environment.env_name",
    "env_load_fn": "create_environment.env_ctor",
    "gym_env_wrappers": "create_environment.wrappers",
    "summary_max_queue": " Summaries are written every `summaries_flush_secs`.",
    "confirm_checkpoint_upon_crash": " The last whole iteration is saved unasked.",
    "async_eval": " Evaluation takes place between two iterations.",
    "enable_amp": 'TrainerConfig.precision: "bfloat16"',
    # Collecting
    "n_sample": "TrainerConfig.unroll_length: steps per environment and iteration",
    "unroll_len": "TrainerConfig.unroll_length: steps per environment and iteration",
    "n_steps": "TrainerConfig.unroll_length: steps per environment and iteration",
    "random_collect_size": "TrainerConfig.initial_collect_steps",
    "learning_starts": "TrainerConfig.initial_collect_steps",
    "rollout_random_action": "TrainerConfig.initial_random_policy",
    "mask_out_loss_for_last_step": " Losses never count the last step of a window.",
    "use_root_inputs_for_after_train_iter": " It always gets them.",
    "ignore_done": " A time limit is bootstrapped without it, see TimeStep.discount.",
    # Updates
    "batch_size": "TrainerConfig.mini_batch_size",
    "update_per_collect": "TrainerConfig.num_updates_per_train_iter",
    "epoch_per_collect": "TrainerConfig.epochs",
    "n_epochs": "TrainerConfig.epochs",
    "gradient_steps": "TrainerConfig.num_updates_per_train_iter",
    "update_counter_every_mini_batch": " Iterations are counted.",
    "learning_rate": "Adam.lr",
    "grad_clip_value": "Adam.gradient_clipping",
    "grad_norm": "Adam.gradient_clipping",
    "max_grad_norm": "Adam.gradient_clipping",
    "clip_by_global_norm": "Adam.gradient_clipping: always of the global norm",
    # Replay
    "replay_buffer_size": "TrainerConfig.replay_buffer_length: steps per environment",
    "buffer_size": "TrainerConfig.replay_buffer_length: steps per environment",
    "priority": "TrainerConfig.priority_replay",
    "priority_IS_weight": "PriorityOptions.beta: 0 for no importance weights",
    "priority_replay_alpha": "PriorityOptions.alpha",
    "priority_replay_beta": "PriorityOptions.beta",
    "priority_replay_eps": "PriorityOptions.eps",
    "normalize_importance_weights_by_max": "PriorityOptions.normalization",
    "calculate_priority": "TrainerConfig.priority_replay: nothing else is needed",
    "enable_checkpoint": "TrainerConfig.checkpoint_replay_buffer",
    "max_use": "SamplingOptions.max_use",
    "max_staleness": "SamplingOptions.max_staleness",
    "recent_data_steps": "SamplingOptions.recent_data_steps",
    "recent_data_ratio": "SamplingOptions.recent_data_ratio",
    "with_replacement": "SamplingOptions.with_replacement",
    "empty_cache": " Memory is reused from iteration to iteration.",
    # Algorithms
    "discount_factor": "gamma",
    "nstep": "n_step",
    "gae_lambda": "td_lambda",
    "importance_ratio_clipping": "PPOAlgorithm.clip_epsilon",
    "clip_ratio": "PPOAlgorithm.clip_epsilon",
    "clip_range": "PPOAlgorithm.clip_epsilon",
    "clip_range_vf": "PPOAlgorithm.value_clip",
    "td_loss_weight": "value_loss_weight",
    "value_weight": "value_loss_weight",
    "vf_coef": "value_loss_weight",
    "entropy_weight": "entropy_regularization",
    "ent_coef": "entropy_regularization",
    "adv_norm": "normalize_advantages",
    "eps": "rollout_epsilon_greedy",
    "exploration_fraction": "rollout_epsilon_greedy: such as @LinearScheduler()",
    "num_critic_replicas": "num_critics",
    "twin_critic": "num_critics",
    "initial_log_alpha": "initial_alpha: not its logarithm",
    "alpha": "initial_alpha",
    "auto_alpha": "learn_alpha",
    "target_theta": "target_update_tau",
    "tau": "target_update_tau",
    "target_update_freq": "target_update_period: updates, with target_update_tau = 1",
    "target_update_interval": "target_update_period: updates",
    "actor_update_freq": "actor_update_period",
    "policy_delay": "actor_update_period",
    "actor_network_cls": "actor_network_ctor",
    "critic_network_cls": "critic_network_ctor",
    "q_network_cls": "critic_network_ctor",
    "value_network_cls": "value_network_ctor",
    "ou_stddev": "OrnsteinUhlenbeckNoise.std",
    "ou_damping": "OrnsteinUhlenbeckNoise.damping",
    "noise_sigma": "GaussianNoise.std",
    "noise_range": "target_noise_clip",
}


def renamed_parameter(parameter: str, known: list[str]) -> str | None:
    """What to say instead of ``parameter``; None if nobody has called it so.

    Args:
        parameter: as written.
        known: parameters of what it was written for.
    """
    here = PARAMETERS.get(parameter)
    if here is None:
        return None
    if here.startswith(" "):
        return here.strip()
    name, _, remark = here.partition(": ")
    if "." not in name and name not in known:
        return None  # it is of other algorithms
    return f"Here that is `{name}`{f' ({remark})' if remark else ''}."
