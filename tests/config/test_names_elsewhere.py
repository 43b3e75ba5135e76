"""Names of other libraries are answered with the names here."""

from __future__ import annotations

import importlib

import pytest

from alf_lite.config import configurables
from alf_lite.config import files as config_files
from alf_lite.config import names as config_names
from alf_lite.config.errors import names_elsewhere
from alf_lite.errors import ConfigError


def parameters(name: str) -> list[str]:
    selector = config_names.complete_name(name)
    return configurables.parameter_names(configurables.target(selector)) or []


def test_every_name_of_the_tables_exists():
    parts = ("alf_lite.algorithms.", "alf_lite.networks.")
    anywhere = {
        parameter
        for name, module in config_names.shipped().items()
        if module.startswith(parts) and importlib.import_module(module)
        for parameter in parameters(name)
    }
    for there, here in names_elsewhere()["parameters"].items():
        name, dot, parameter = here.partition(": ")[0].partition(".")
        if not here.startswith(" "):
            known = parameters(name) if dot else anywhere
            assert (parameter if dot else name) in known, there
        owner, dot, _ = there.rpartition(".")
        if dot and owner not in names_elsewhere()["configurables"]:
            assert config_names.complete_name(owner), there
    for there, here in names_elsewhere()["configurables"].items():
        assert here.startswith(" ") or config_names.complete_name(here), there


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        (
            "Agent.reward_weight_algorithm_cls = @LagrangianRewardWeights",
            "'Agent' has no parameter 'reward_weight_algorithm_cls'. Here that is "
            "`Agent.reward_weights = @LagrangianRewardWeights`.",
        ),
        (
            "TrainerConfig.num_evals = 3",
            "'TrainerConfig' has no parameter 'num_evals'. Here that is "
            "`TrainerConfig.eval_interval` (iterations from one to the next).",
        ),
        (
            "TrainerConfig.priority_replay_alpha = 0.6",
            "Here that is `PriorityOptions.alpha`.",
        ),
        (
            "TrainerConfig.mask_out_loss_for_last_step = True",
            "has no parameter 'mask_out_loss_for_last_step'. Losses never count",
        ),
        ("DqnAlgorithm.discount_factor = 0.9", "Here that is `gamma`."),
        ("SacAlgorithm.num_critic_replicas = 2", "Here that is `num_critics`."),
        (
            "PPOLoss.gamma = 0.9",
            "no configurable 'PPOLoss'. Here that is 'PPOAlgorithm'",
        ),
        ("DqnAlgorithm.q_network_cls = @QNetwork", "Here that is `q_network_ctor`."),
        (
            "ImageScaleTransformer.min = 0.0",
            "Here that is `ImageScaleTransformer.minimum`.",
        ),
        (
            "create_environment.for_evaluation = True",
            "What is bound in the scope `evaluation/` holds for evaluations.",
        ),
        (
            "ActorDistributionNetwork.input_preprocessors = None",
            "Here that is `EncodingNetwork.input_preprocessors` (and encoding_",
        ),
        # No parameter that only the library gives is suggested.
        (
            "create_environment.num_rank = 3",
            "'num_rank'. It has: env_name, num_parallel_environments, ",
        ),
        ("NonEpisodicAgent.discount = 1.0", "Here that is 'IgnoreTermination'."),
        ("NormalizedAction.x = 1", "no configurable 'NormalizedAction'. Agents act in"),
        ("TrainerConfig.unroll_len = 8", "Here that is `TrainerConfig.mini_batch_len"),
        ("RandomGoal.num_of_goals = 8", "Here that is `RandomGoal.num_categories`."),
        ("PPOAlgorithm.model = None", "`actor_network_ctor`, `value_network_ctor`"),
        ("x = @MdqAlgorithm", "continuous dimensions is not here; `SacAlgorithm`"),
        ("x = @TracAlgorithm", "off-policy, TracSacAlgorithm does that for SAC"),
        ("x = @get_observation_spec", "Specs come from the environment"),
        (
            "SacAlgorithm.target_entropy = @calc_default_target_entropy",
            "Here that is 'concentrated_entropy'",
        ),
        # Of other algorithms only.
        ("BcAlgorithm.tau = 0.1", "'BcAlgorithm' has no parameter 'tau'. "),
    ],
)
def test_a_name_of_another_library_is_answered_with_the_name_here(statement, answer):
    with pytest.raises(ConfigError) as error:
        config_files.parse_config(None, [statement])
    assert answer in str(error.value)
    assert "\n" not in str(error.value)


def test_a_conf_of_alf_is_recognised(tmp_path):
    path = tmp_path / "ppo_cart_pole_conf.py"
    path.write_text("import alf\n")
    with pytest.raises(ConfigError) as error:
        config_files.parse_config(str(path), [])
    assert "docs/coming_from/alf.md" in str(error.value)
    assert "--conf=ppo_cart_pole is shipped" in str(error.value)


def test_the_same_name_in_a_module_of_the_user_is_not_answered_so(monkeypatch):
    with pytest.raises(ConfigError, match="has no parameter 'tau'") as error:
        config_files.parse_config(None, ["gymnasium.wrappers.TimeLimit.tau = 1"])
    assert "Here that is" not in str(error.value)
