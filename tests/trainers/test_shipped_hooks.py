"""The best model by a number of one's own, early stops, curricula."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.environments import create_environment
from alf_lite.errors import CheckpointError, ConfigError, EnvError
from alf_lite.metrics.episode_metric import EpisodeMetric
from alf_lite.policies import evaluator
from alf_lite.policies.evaluator import EvalResult
from alf_lite.trainers import evaluation_worker
from alf_lite.trainers.shipped_hooks import BestModel, Curriculum, EarlyStop
from tests.environments.light_environments import Ladder
from tests.trainers.async_toys import WitnessAlgorithm
from tests.trainers.toys import ToyAlgorithm

EVALUATE = {"evaluate": True, "eval_interval": 2, "num_eval_episodes": 1}


@pytest.fixture
def scripted(monkeypatch):
    """Evaluations report these heights, one by one."""

    def use(*heights: float) -> None:
        left = iter(heights)

        def evaluate(*args, **kwargs) -> EvalResult:
            return EvalResult([-1.0], [1], 1, {"last/height": next(left)})

        monkeypatch.setattr(evaluation_worker, "evaluate", evaluate)

    assert evaluator.evaluate is evaluation_worker.evaluate
    return use


def best_step(tmp_path) -> int:
    return Checkpointer(tmp_path / "run/checkpoints").load("best", ["algorithm"]).step


@pytest.mark.parametrize(("lower", "step"), [(False, 4), (True, 6)])
def test_the_best_model_by_another_number(train, tmp_path, scripted, lower, step):
    scripted(9.0, 2.0, 5.0, 1.0, 3.0)  # at 0, 2, 4, 6 and 8
    hook = BestModel("EnvInfo/last/height", lower_is_better=lower)
    result = train(hooks=[hook], **EVALUATE)
    assert best_step(tmp_path) == step
    assert result.best_score == (-1.0 if lower else 5.0)


@pytest.mark.ci
def test_a_resumed_run_compares_one_number(train, scripted, caplog):
    scripted(*range(20))
    config = {**EVALUATE, "num_iterations": 4}
    train(hooks=[BestModel("EnvInfo/last/height")], **config)
    config["num_iterations"] = 8
    for other in (
        BestModel("AverageReturn"),
        BestModel("EnvInfo/last/height", lower_is_better=True),
    ):
        with pytest.raises(CheckpointError, match=r"the best policy so far is that by"):
            train(hooks=[other], **config)
    train(hooks=[BestModel("EnvInfo/last/height")], **config)
    assert "compared with" not in caplog.text
    train("other", **{**config, "num_iterations": 4})
    train("other", hooks=[BestModel("EnvInfo/last/height")], **config)
    assert "Scores by EnvInfo/last/height are compared with that" in caplog.text


def test_a_number_that_there_is_not_is_named(train, scripted):
    scripted(1.0, 1.0)
    with pytest.raises(
        ConfigError, match=r"no EnvInfo/height. Did you mean 'EnvInfo/l"
    ):
        train(hooks=[BestModel("EnvInfo/height")], **EVALUATE)


@pytest.mark.parametrize("hook", [BestModel(), EarlyStop(patience=1)])
def test_evaluations_are_wanted(train, hook):
    with pytest.raises(ConfigError, match=f"{type(hook).__name__} looks at evaluation"):
        train(hooks=[hook])


@pytest.mark.parametrize(
    ("options", "last", "reason"),
    [
        ({"threshold": 5.0}, 4, "height 5 reaches 5"),
        ({"threshold": 1.0, "lower_is_better": True}, 6, "height 1 reaches 1"),
        ({"patience": 2}, 8, "did not get better than 5 in 2 evaluations"),
    ],
)
def test_early_stops(train, scripted, options, last, reason):
    heights = [9.0, math.nan, 5.0, 1.0, 3.0, 9.0, 9.0]
    hook = functools.partial(EarlyStop, "EnvInfo/last/height", **options)
    config = {"num_iterations": 20, "num_checkpoints": 20, **EVALUATE}
    scripted(*heights)
    result = train(hooks=[hook()], **config)
    assert result.iterations == last
    assert reason in result.stop_reason
    scripted(*heights)
    assert train(hooks=[hook()], **config).iterations == last  # nothing is added
    stop = hook()
    stop.load_state_dict({"best": math.nan, "num_without_better": 1})  # an older one
    assert stop.state_dict()["best"] == -math.inf


def test_a_stop_by_another_number_begins_anew(train, scripted, caplog):
    scripted(*[9.0] * 9)
    config = {**EVALUATE, "num_iterations": 4}
    train(hooks=[EarlyStop("EnvInfo/last/height", threshold=99.0)], **config)
    config["num_iterations"] = 8
    stop = EarlyStop("AverageReturn", threshold=8.0)  # which no return reaches
    assert train(hooks=[stop], **config).iterations == 8
    assert "looked at {'score': 'EnvInfo/last/height'" in caplog.text
    lower = EarlyStop("AverageReturn", threshold=8.0, lower_is_better=True)
    lower.load_state_dict(stop.state_dict())
    assert lower.state_dict()["best"] == -math.inf


@pytest.mark.parametrize("by_hook", [False, True])
def test_what_is_evaluated_before_the_first_update_counts_for_nothing(train, by_hook):
    hooks = [EarlyStop(patience=1)] if by_hook else []
    stops = {} if by_hook else {"early_stop_patience": 1}
    data = {"mini_batch_length": 2, "initial_collect_steps": 60}  # 10 per iteration
    config = {"algorithm_ctor": WitnessAlgorithm, **data, **EVALUATE, **stops}
    result = train(create_env=ladders, hooks=hooks, num_iterations=20, **config)
    assert result.iterations == 8  # of the returns 0 at 6 and 8 none is better
    assert result.num_updates == 3


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="a threshold, a patience"):
        EarlyStop()
    for patience in (0, -3):
        with pytest.raises(ValueError, match=f"at least 1, got {patience}"):
            EarlyStop(threshold=1.0, patience=patience)
    with pytest.raises(ValueError, match="2 levels need 1 thresholds, got 2"):
        Curriculum([{}, {}], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"gravity must begin with 'env.'"):
        Curriculum([{"gravity": 1}], [])
    with pytest.raises(ConfigError, match=r"sets env.gravty, and the first one does n"):
        Curriculum([{"env.gravity": 1}, {"env.gravty": 2}], [9.0])
    with pytest.raises(ConfigError, match=r"^interval has no effect: a score of eval"):
        Curriculum([{}], [], "eval/AverageReturn", interval=5)


def ladders(*, seed=None, num_parallel_environments=2, mode="sync"):
    return create_environment(
        env_ctor=Ladder,
        num_parallel_environments=num_parallel_environments,
        vectorization_mode=mode,
        seed=seed,
    )


def climb() -> Curriculum:
    levels = [{"env.set_height": 3.0}, {"env.set_height": 6.0}, {"env.height": 9.0}]
    levels[0] |= {"env.height": 3.0, "algorithm.predict_epsilon": 0.0}
    levels[1]["algorithm.predict_epsilon"] = 0.5
    return Curriculum(levels, [3.0, 5.0], min_episodes=8, interval=1)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_settings_reach_every_environment_at_its_next_reset(mode):
    with ladders(mode=mode, seed=0, num_parallel_environments=1) as env:
        env.set_attribute("height", 3.0)
        assert env.reset().observation[0, 0] == 3
        env.set_attribute("set_height", 6.0)
        assert env.step(torch.zeros(1, dtype=torch.int64)).observation[0, 0] == 3
        assert env.reset().observation[0, 0] == 6
        with pytest.raises(EnvError, match="no attribute width"):
            env.set_attribute("width", 1)


def test_settings_of_other_batches():
    with create_environment("CartPole-v1", 2, vectorization_mode="native") as env:
        env.set_attribute("gravity", 1.0)
        assert env.vector_env.unwrapped.gravity == 1.0
        with pytest.raises(EnvError, match="no attribute width"):
            env.set_attribute("width", 1)


@pytest.mark.ci
def test_levels_are_climbed_and_a_resumed_run_goes_on_exactly(make_trainer):
    config = {"create_env": ladders, "num_iterations": 12, "num_checkpoints": 12}
    hook = climb()
    whole = make_trainer("whole", hooks=[hook], **config)
    assert whole.train().average_return > 6
    assert hook.level == 2
    assert whole.algorithm.predict_epsilon == 0.5
    for end in (6, 12):  # after 6 the open episodes have begun at the level
        hook = climb()
        parts = make_trainer("parts", hooks=[hook], **{**config, "num_iterations": end})
        parts.train()
    assert hook.level == 2
    expected = whole.algorithm.state_dict()
    for name, value in parts.algorithm.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_a_level_is_judged_by_the_episodes_that_have_begun_there(make_trainer):
    levels = [{"env.height": 3.0}, {"env.height": 1.0}, {"env.height": 0.0}]
    hook = Curriculum(levels, [3.0, 2.0], min_episodes=1, interval=1)
    config = {"unroll_length": 2, "num_iterations": 12}
    trainer = make_trainer("run", hooks=[hook], create_env=ladders, **config)
    assert trainer.train().average_return == pytest.approx(1.0)
    assert hook.level == 1


class Unknown(EpisodeMetric):
    def value(self, time_step):
        return torch.full(time_step.step_type.shape, math.nan)


@pytest.mark.parametrize("score", ["Unknown", "eval/EnvInfo/last/height"])
def test_a_level_waits_for_a_number(make_trainer, scripted, score):
    scripted(*[math.nan] * 9)
    levels = [{"env.height": 3.0}, {"env.height": 1.0}]
    interval = {} if score.startswith("eval/") else {"interval": 1}
    hook = Curriculum(levels, [-9.0], score, min_episodes=0, **interval)
    config = {"create_env": ladders, "num_iterations": 8, "metric_ctors": [Unknown]}
    make_trainer("run", hooks=[hook], **config, **EVALUATE).train()
    assert hook.level == 0


def test_a_score_that_there_is_not_ends_the_run_before_it_begins(train):
    def run(score):
        hooks = [Curriculum([{"env.height": 3.0}], [], score)]
        return train(hooks=hooks, create_env=ladders, num_iterations=1)

    with pytest.raises(ConfigError, match=r"there is no AverageLength\. Did"):
        run("AverageLength")
    assert run("AverageEpisodeLength").iterations == 1


def test_a_setting_that_cannot_be_ends_the_run_before_it_begins(train, monkeypatch):
    for name, message in (
        ("env.width", "no attribute width"),
        ("algorithm.width", "ToyAlgorithm has no width"),
    ):
        with pytest.raises(ConfigError, match=f"Curriculum: .*{message}"):
            train(hooks=[Curriculum([{name: 1}], [])], create_env=ladders)
    monkeypatch.setattr(ToyAlgorithm, "explores_by_epsilon", False)
    with pytest.raises(ConfigError, match="predict_epsilon has no effect: ToyAlg"):
        train(hooks=[Curriculum([{"algorithm.predict_epsilon": 0.5}], [])])
