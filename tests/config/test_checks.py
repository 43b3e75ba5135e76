"""Checks of a whole configuration."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from alf_lite.config import configurable
from alf_lite.config import files as config_files
from alf_lite.errors import ConfigError

if TYPE_CHECKING:
    from decimal import Decimal


class Rate:
    """Something that is a number at any time."""


@configurable
class Valve:
    def __init__(
        self,
        rate: float | Rate = 0.1,
        *,
        steps: int = 1,
        layers: tuple[int, ...] = (64,),
        inner_ctor: Callable[..., Any] | None = None,
        inner: "Valve | None" = None,
        odd_default: int = None,  # noqa: RUF013
    ):
        self.rate, self.steps, self.inner = rate, steps, inner


@configurable
def make_valve_ctor():
    return Valve


@configurable
def unresolvable(size: int = 1, amount: "Decimal" = 0):
    return size, amount


def refused(*statements):
    with pytest.raises(ConfigError) as error:
        config_files.parse_config(None, statements)
    return str(error.value)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("Valve.rate = 'abc'", ": expected a number or Rate."),
        ("Valve.rate = True", ": expected a number or Rate."),
        ("Valve.steps = 1e6", ": expected an int."),
        ("Valve.steps = None", ": expected an int."),
        ("Valve.layers = 64", ": expected a list, each item an int."),
        ("Valve.layers = ['64']", ": expected a list, each item an int."),
        ("Valve.steps = @make_valve_ctor", ": expected an int."),
        # A name for type checkers costs one parameter
        ("unresolvable.size = 'big'", ": expected an int."),
        # Of the library
        ("SacAlgorithm.use_entropy_reward = 'False'", ": expected True or False."),
        ("SacAlgorithm.parameter_reset_period = 2.5", ": expected an int or None."),
        ("SacAlgorithm.max_log_alpha = '1.0'", ": expected a number or None."),
        (
            "SacAlgorithm.target_entropy = 'auto'",
            ": expected a number or a schedule or a callable or None.",
        ),
        ("SacAlgorithm.gamma = '0.9'", ": expected a number or a schedule."),
        ("RedqAlgorithm.use_entropy_reward = 'False'", ": expected True or False."),
        ("DqnAlgorithm.double = 'False'", ": expected True or False."),
        ("CriticNetwork.layer_norm = 'False'", ": expected True or False."),
        ("Adam.betas = [0.9, '0.999']", ": expected a list, each item a number."),
        ("SacAlgorithm.max_log_alpha = @LinearScheduler()", ": expected a number or"),
        ("SacAlgorithm.optimizer = @CriticNetwork()", ": expected Optimizer or None."),
        # With what was meant
        ("Valve.inner = @Valve", ": expected Valve or None. Write `@Valve()` to call"),
        ("Valve.inner_ctor = @inner/Valve()", "Write `@inner/Valve` without the paren"),
        (
            "create_environment.wrappers = @ActionObservation",
            "Write `[@ActionObservation]`.",
        ),
        (
            "Agent.rl_algorithm_ctor = 'PPOAlgorithm'",
            ": expected a constructor of RLAlgorithm. Write `@PPOAlgorithm`, without",
        ),
        ("Agent.rl_algorithm_ctor = 'nothing'", "a constructor of RLAlgorithm."),
        # Through macros, after a line
        ("COUNT = 'x'\nALIAS = %COUNT\nValve.steps = %ALIAS", ": expected an int"),
        ("SIZE = 'x'\nValve.layers = [1, %SIZE]", ": expected a list"),
        ("A = %B\nB = [%A]\nValve.rate = %A", "refers to itself"),
        ("A = %A", "refers to itself"),
        # Not given, or no number that can be saved
        ("Valve.rate = %gin.REQUIRED", "has to be set: --gin_param='Valve.rate=...'"),
        ("Valve.layers = [%gin.REQUIRED]", "has to be set: --gin_param='Valve.layers"),
        ("Valve.rate = 1e999", "this number is infinite"),
        ("Valve.rate = [1, -1e999]", "this number is infinite"),
        ("Valve.rate = {'a': 1e999}", "this number is infinite"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(statement, message):
    said = refused(*statement.split("\n"))
    is_of_a_value = message.startswith(": expected")
    assert (statement.split("\n")[-1] * is_of_a_value + message) in said


@pytest.mark.parametrize(
    "statement",
    [
        "SacAlgorithm.gamma = 1",
        "SacAlgorithm.target_entropy = -1",
        "SacAlgorithm.target_update_tau = [(0.0, 1), (1.0, 0.01)]",
        "SacAlgorithm.target_update_tau = @LinearScheduler()",
        "SacAlgorithm.optimizer = @Adam()",
        "SacAlgorithm.critic_network_ctor = @critic/CriticNetwork",
        "SacAlgorithm.reward_weights = @LagrangianRewardWeights",
        "SacAlgorithm.reward_weights = (1, 2.0)",
        "Agent.reward_weights = @LagrangianRewardWeights",
        "DynamicActionRepeatAgent.reward_weights = @LagrangianRewardWeights",
        "CriticNetwork.activation = @torch.nn.ReLU",
        "CriticNetwork.activation = @torch.nn.ReLU()",
    ],
)
def test_what_the_library_takes_is_accepted(statement):
    config_files.parse_config(None, [statement])
    name = statement.partition(" = ")[0]
    assert f"{name.rpartition('.')[2]} = " in config_files.user_config_text()


@pytest.mark.parametrize(
    ("statement", "advice"),
    [
        (
            "Agent.reward_weights = @LagrangianRewardWeights()",
            "@LagrangianRewardWeights",
        ),
        ("Agent.intrinsic_rewards = @RndReward()", "@RndReward"),
        ("Agent.intrinsic_rewards = [@x/RndReward()]", "@x/RndReward"),
        ("Agent.intrinsic_rewards = {'a': @RndReward()}", "@RndReward"),
        ("SacAlgorithm.critic_network_ctor = @CriticNetwork()", "@CriticNetwork"),
        ("TrainerConfig.metric_ctors = [@Rate()]", "@Rate"),
    ],
)
def test_what_calls_a_parameter_decides_whether_it_is_a_constructor(statement, advice):
    statement = statement.replace("@Rate", f"@{__name__}.Rate")
    advice = advice.replace("@Rate", f"@{__name__}.Rate")
    message = refused(statement)
    assert f"is called later. Write `{advice}` without the parentheses." in message


def test_a_function_may_make_a_constructor():
    config_files.parse_config(None, ["Valve.inner_ctor = @make_valve_ctor()"])
    assert "@make_valve_ctor()" in config_files.user_config_text()


def test_all_wrong_types_are_named_at_once():
    message = refused("Valve.rate = 'a'", "Valve.steps = 'b'", "x/Valve.steps = 'c'")
    assert message.count("expected") == 3


@pytest.mark.parametrize(
    "statement",
    [
        "Valve.rate = 3",
        "Valve.layers = []",
        "Valve.layers = (1, 2)",
        "Valve.inner = @Valve()",
        "Valve.inner_ctor = @a/Valve",
        "Valve.odd_default = None",
        "unresolvable.amount = 'not judged, its annotation cannot be resolved'",
    ],
)
def test_what_fits_is_accepted(statement):
    config_files.parse_config(None, [statement])


def test_an_undefined_macro_is_named_with_its_line(tmp_path):
    conf = tmp_path / "x.gin"
    conf.write_text("NUM_STEPS = 3\n\nValve.steps = %NUM_STEP\n")
    with pytest.raises(ConfigError) as error:
        config_files.parse_config(str(conf))
    assert str(error.value) == (
        f"{conf}:3: the macro %NUM_STEP is not defined. Did you mean 'NUM_STEPS'? "
        "Define it: `NUM_STEP = value`."
    )


def test_a_macro_may_be_defined_after_its_use():
    config_files.parse_config(None, ["Valve.steps = %N", "N = 3"])
    assert Valve().steps == 3


def test_a_required_macro_has_to_be_given():
    message = refused("ENV = %gin.REQUIRED", "Valve.rate = %ENV")
    assert "'ENV' has to be set: --gin_param='ENV=...'" in message
    statements = ["ENV = %gin.REQUIRED", "Valve.rate = %ENV", "ENV = 2.0"]
    config_files.parse_config(None, statements)


def test_a_required_macro_needs_no_value_where_what_uses_it_is_overridden():
    statements = ["ENV = %gin.REQUIRED", "Valve.rate = %ENV", "Valve.rate = 2.0"]
    config_files.parse_config(None, statements, strict=True)
    assert Valve().rate == 2.0
    config_files.check_unused_bindings()
    config_files.parse_config_text(config_files.user_config_text())
    assert Valve().rate == 2.0


def test_a_required_macro_that_is_overridden_where_it_stands_needs_no_value():
    statements = ["ENV = %gin.REQUIRED", "Valve.rate = %ENV", "Valve.rate = 2.0"]
    config_files.parse_config(None, statements)
    assert Valve().rate == 2.0


@pytest.mark.parametrize(
    ("statement", "advice"),
    [
        ("num_env_steps = 5", "Did you mean 'TrainerConfig.num_env_steps'?"),
        ("rate = 5.0", "Did you mean 'Valve.rate'?"),
        ("seed = 5", "Here that is `TrainerConfig.random_seed`."),
        ("Rat = 5.0", "Did you mean 'RATE'?"),
        ("xyzzy = 5", "A setting is written `Name.parameter = value`."),
    ],
)
def test_a_macro_of_the_command_line_that_nothing_refers_to(
    tmp_path, statement, advice
):
    conf = tmp_path / "of_test.gin"
    conf.write_text("RATE = 2.0\nUNUSED = 3\nValve.rate = %RATE\n")
    config_files.parse_config(str(conf), ["RATE = 4.0"])  # UNUSED is only warned of
    config_files.reset()
    with pytest.raises(ConfigError) as error:
        config_files.parse_config(str(conf), [statement])
    name = statement.split()[0]
    expected = f"--gin_param: {statement}: nothing refers to the macro {name!r}. "
    assert str(error.value) == expected + advice


def test_many_problems_are_cut():
    message = refused(*(f"s{i}/Valve.steps = 'x'" for i in range(20)))
    assert message.count("\n") == 8
    assert message.endswith("...")


def test_a_call_in_a_macro_is_repeated_and_warned_of(caplog):
    config_files.parse_config(
        None,
        ["SHARED = @Valve()", "a/Valve.inner = %SHARED", "b/Valve.inner = %SHARED"],
    )
    (record,) = caplog.records
    assert "called anew at each of the 2 uses of %SHARED" in record.getMessage()


def test_a_singleton_is_one_object(caplog):
    config_files.parse_config(
        None,
        [
            "SHARED = @shared/gin.singleton()",
            "shared/gin.singleton.constructor = @Valve",
            "connect_two.first = %SHARED",
            "connect_two.second = %SHARED",
            "connect_two.third = @Valve()",
        ],
    )

    first, second, third = connect_two()
    assert first is second
    assert first is not third
    assert not caplog.records


@configurable
def connect_two(first=None, second=None, third=None):
    return first, second, third
