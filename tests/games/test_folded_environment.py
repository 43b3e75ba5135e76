"""Agents of one game as rows of a batch."""

from __future__ import annotations

import functools
import types

import numpy as np
import pytest
import torch
from gymnasium import spaces

from alf_lite import nest
from alf_lite.algorithms.acting import TrainedPolicy
from alf_lite.algorithms.ppo_algorithm import PPOAlgorithm
from alf_lite.config import TrainerConfig
from alf_lite.data_structures import StepType
from alf_lite.environments.creation import create_environment
from alf_lite.errors import CheckpointError, ConfigError, EnvError
from alf_lite.games.folded_environment import FoldedEnvironment
from alf_lite.games.league import League
from alf_lite.games.opponents import OnePlyOpponent, Opponent, RandomOpponent
from alf_lite.games.policy_opponents import PolicyOpponent
from alf_lite.metrics.episode_metric import EpisodeMetric
from alf_lite.metrics.recent_games import RecentGames
from alf_lite.optimizers import Adam
from alf_lite.policies.evaluator import evaluate
from alf_lite.testing.environment_contract import EnvironmentContract
from alf_lite.tools.collector import NumEpisodes, RandomPolicy, collect
from alf_lite.tools.player import EpisodeRecorder


class Walkers:
    """N agents on a line, each of which is paid for where it stands.

    Agent i is out after ``lengths[i]`` steps; by the end of its life, not by a limit.
    """

    def __init__(self, lengths=(5, 5), masks=None):
        self.metadata = {"name": "walkers"}
        self.possible_agents = [f"walker_{i}" for i in range(len(lengths))]
        self._lengths = dict(zip(self.possible_agents, lengths, strict=True))
        self._masks = masks
        self._rng = np.random.default_rng()

    def observation_space(self, agent):
        box = spaces.Box(-100.0, 100.0, (2,))
        if self._masks == "observation":
            mask = spaces.MultiBinary(3)
            return spaces.Dict({"observation": box, "action_mask": mask})
        return box

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None):
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._time = 0
        self._places = {agent: self._rng.normal() for agent in self.agents}
        return self._seen(), self._infos()

    def step(self, actions):
        assert actions.keys() == set(self.agents)
        self._time += 1
        for agent, action in actions.items():
            self._places[agent] += int(action) - 1
        over = {a: self._time == self._lengths[a] for a in self.agents}
        rewards = {a: float(self._places[a]) for a in self.agents}
        result = self._seen(), rewards, over, dict.fromkeys(over, False), self._infos()
        self.agents = [agent for agent in self.agents if not over[agent]]
        return result

    def _mask(self):
        return np.array([1, self._time % 2, 1], np.int8)

    def _seen(self):
        seen = {
            agent: np.array([self._places[agent], self._time], np.float32)
            for agent in self.agents
        }
        if self._masks == "observation":
            return {
                agent: {"observation": one, "action_mask": self._mask()}
                for agent, one in seen.items()
            }
        return seen

    def _infos(self):
        info = {"action_mask": self._mask()} if self._masks == "info" else {}
        return {agent: dict(info) for agent in self.agents}

    def close(self):
        pass


class TestFolded(EnvironmentContract):
    num_environments = 6

    def make(self, num_environments, seed):
        lengths = (5, 5) if num_environments % 2 == 0 else (5,)
        return FoldedEnvironment(num_environments, lambda: Walkers(lengths), seed=seed)


def seeds_of(env) -> list[int]:
    return [one.seed for one in env._games.positions]


def random_actions(rows: int, number: int) -> torch.Tensor:
    return torch.randint(3, (number, rows), generator=torch.Generator().manual_seed(0))


def test_rows_are_the_agents_of_single_games():
    env = FoldedEnvironment(6, lambda: Walkers((4, 4)), seed=0)
    first = env.reset(3)
    games = [Walkers((4, 4)) for _ in range(3)]
    seen = [g.reset(seed=s)[0] for g, s in zip(games, seeds_of(env), strict=True)]
    assert torch.equal(first.observation["agent"], torch.eye(2).repeat(3, 1))
    for action in random_actions(6, 30):
        for i, one in enumerate(seen):
            own = np.stack([one[f"walker_{a}"] for a in (0, 1)])
            rows = env.current_time_step.observation
            assert np.array_equal(rows["own"][2 * i : 2 * i + 2], own)
            for a in (0, 1):
                assert np.array_equal(rows["team"][2 * i + a], own.ravel())
        step = env.step(action)
        for i, game in enumerate(games):
            rows = slice(2 * i, 2 * i + 2)
            if not game.agents:
                seen[i] = game.reset(seed=seeds_of(env)[i])[0]
                assert (step.step_type[rows] == StepType.FIRST).all()
                continue
            chosen = dict(zip(game.agents, action[rows].tolist(), strict=True))
            seen[i], rewards, over, _, _ = game.step(chosen)
            assert step.reward[rows].tolist() == pytest.approx(list(rewards.values()))
            assert step.is_last()[rows].tolist() == list(over.values())
            assert step.discount[rows].tolist() == [1 - end for end in over.values()]


def test_an_agent_that_is_out_waits_for_the_end_of_the_game():
    env = FoldedEnvironment(4, lambda: Walkers((2, 5)), seed=0)
    env.reset(0)
    steps = [env.step(action) for action in random_actions(4, 12)]
    kinds = torch.stack([step.step_type for step in steps])
    assert kinds[:, 0].tolist() == [1, 2, 2, 2, 2, 0, 1, 2, 2, 2, 2, 0]
    assert kinds[:, 1].tolist() == [1, 1, 1, 1, 2, 0, 1, 1, 1, 1, 2, 0]
    for step in steps[2:5]:
        assert step.reward[0] == 0
        assert step.discount[0] == 0


def test_nothing_is_learned_from_agents_that_are_out():
    env = FoldedEnvironment(4, lambda: Walkers((2, 6)), seed=0)
    config = TrainerConfig(num_iterations=3, unroll_length=14, random_seed=0)
    algorithm = PPOAlgorithm(env=env, config=config)
    for _ in range(3):
        algorithm.train_iter()
    valid = algorithm.training_run.preprocessed.valid[:, :-1]
    kinds = algorithm.training_run.preprocessed.inputs.step_type[:, :-1]
    assert torch.equal(valid, kinds != StepType.LAST)
    assert (kinds[0] == StepType.LAST).sum() > 2 * (kinds[1] == StepType.LAST).sum()
    # Each agent's own episodes: two and six steps
    assert algorithm.metrics.results()["AverageEpisodeLength"] == pytest.approx(4)


class Shuffled(Walkers):
    """The same game, whose agents are named in another order."""

    def __init__(self, lengths):
        super().__init__(lengths)
        self.possible_agents = self.possible_agents[::-1]

    def reset(self, seed=None):
        names, self.possible_agents = self.possible_agents, self.possible_agents[::-1]
        result = super().reset(seed)
        self.possible_agents = names
        return result


def test_shuffling_agents_shuffles_rows():
    env = FoldedEnvironment(4, lambda: Walkers((2, 5)), seed=0)
    other = FoldedEnvironment(4, lambda: Shuffled((2, 5)), seed=0)
    order = torch.tensor([1, 0, 3, 2])
    env.reset()
    other.reset()
    for action in random_actions(4, 20):
        step, same = env.step(action), other.step(action[order])
        for name in ("step_type", "reward", "discount"):
            assert torch.equal(getattr(step, name), getattr(same, name)[order])
        own = same.observation["own"]
        assert torch.equal(step.observation["own"], own[order])


@pytest.mark.ci
def test_games_in_progress_are_continued_to_the_bit():
    def make(walkers=Walkers):
        return FoldedEnvironment(6, lambda: walkers((2, 5)))

    actions = random_actions(6, 60)
    for number in (3, 4, 5, 6, 14):  # one is out, both are, a new game begins
        env, again = make(), make()
        env.reset(number)
        for action in actions[:number]:
            env.step(action)
        state = env.episode_state()
        assert again.restore_episodes(state, 77) == {}
        for action in actions[number:]:
            one, other = env.step(action), again.step(action)
            for a, b in zip(nest.flatten(one), nest.flatten(other), strict=True):
                assert torch.equal(a, b)
    with pytest.raises(CheckpointError, match="of walkers, 6 rows"):
        FoldedEnvironment(4, lambda: Walkers((2, 5))).restore_episodes(state, 0)


class Unseeded(Walkers):
    def reset(self, seed=None):
        return super().reset(None)


def test_a_game_that_cannot_be_replayed_begins_anew():
    env, again = (FoldedEnvironment(4, lambda: Unseeded((3, 5))) for _ in range(2))
    env.reset(0)
    for action in random_actions(4, 2):
        env.step(action)
    reasons = again.restore_episodes(env.episode_state(), 0)
    assert set(reasons) == {0, 1, 2, 3}
    assert again.current_time_step.is_first().all()
    assert again.step(random_actions(4, 1)[0]).step_type.tolist() == [1] * 4


@pytest.mark.parametrize("where", ["observation", "info"])
def test_masks_are_found(where):
    env = FoldedEnvironment(2, lambda: Walkers((4, 4), masks=where), seed=0)
    step = env.reset()
    assert step.observation["action_mask"].tolist() == [[1, 0, 1]] * 2
    step = env.step(torch.tensor([0, 2]))
    assert step.observation["action_mask"].tolist() == [[1, 1, 1]] * 2


def test_a_game_that_is_cut_is_not_terminal():
    env = FoldedEnvironment(2, lambda: Walkers((9, 9)), max_episode_steps=3, seed=0)
    env.reset()
    step = [env.step(action) for action in random_actions(2, 3)][-1]
    assert step.is_last().all()
    assert (step.discount == 1).all()


def test_without_a_team_the_agents_are_independent():
    env = FoldedEnvironment(2, Walkers, tells_team=False)
    assert env.observation_spec.keys() == {"agent", "own"}


class Unequal(Walkers):
    def observation_space(self, agent):
        return spaces.Box(-1.0, 1.0, (2 + (agent == "walker_1"),))


class Silent(Walkers):
    def step(self, actions):
        seen, rewards, *rest = super().step(actions)
        rewards.pop("walker_1")
        return seen, rewards, *rest


def test_one_environment_is_one_game():
    env = FoldedEnvironment(1, Walkers)
    assert env.batch_size == 2
    assert env.reset(0).observation["own"].shape[0] == 2


class Drawn(Walkers):
    def __init__(self, render_mode=None):
        super().__init__((2, 3))
        self.render_mode = render_mode

    def render(self):
        if self.render_mode is None:
            return None
        return np.full((2, 2, 3), self._time, np.uint8)


@pytest.mark.parametrize("make_game", [Drawn, lambda **options: Drawn(**options)])
def test_games_are_drawn_in_the_mode_that_is_asked_for(make_game):
    make = functools.partial(FoldedEnvironment, make_game=make_game)
    with create_environment("", 4, env_ctor=make, render_mode="rgb_array") as env:
        env.reset(seed=0)
        for time in range(3):  # the first game, also when an agent is out
            assert env.num_rendered == 1
            assert env.render().tolist() == [[[time] * 3] * 2] * 2
            env.step(torch.zeros(4, dtype=torch.int64))
    with make(2) as env:
        env.reset(seed=0)
        assert env.render() is None
    # What was bound stays where nothing else is asked for
    bound = functools.partial(make_game, render_mode="rgb_array")
    make = functools.partial(FoldedEnvironment, make_game=bound)
    with create_environment("", 2, env_ctor=make) as env:
        env.reset(seed=0)
        assert env.num_rendered == 1
    make = functools.partial(
        FoldedEnvironment, make_game=make_game, render_mode="rgb_array"
    )
    with create_environment("", 2, env_ctor=make) as env:
        env.reset(seed=0)
        assert env.num_rendered == 1


class Length(EpisodeMetric):
    def value(self, time_step):
        return torch.ones(time_step.step_type.shape)


def test_an_agent_that_waits_has_ended_once(caplog):
    env = FoldedEnvironment(4, lambda: Drawn("rgb_array"), seed=0)
    config = TrainerConfig(
        num_iterations=3,
        unroll_length=10,  # games of 3 steps and the FIRST one
        random_seed=0,
        metric_ctors=[functools.partial(Length, "sum")],
    )
    algorithm = PPOAlgorithm(env=env, config=config)
    algorithm.train_iter()
    algorithm.train_iter()
    # As a run that is resumed between the two LAST steps of a game
    saved = algorithm.metrics.state_dict()
    algorithm.metrics.reset()
    algorithm.metrics.load_state_dict(saved)
    algorithm.train_iter()
    results = algorithm.metrics.results()
    assert results["NumberOfEpisodes"] == 4 * 7 + 2  # two are out in the eighth games
    assert results["Length"] == results["AverageEpisodeLength"]
    del saved["was_last"]  # an older one
    algorithm.metrics.load_state_dict(saved)

    buffer = collect(env, RandomPolicy(env), NumEpisodes(8), seed=0)
    assert buffer.sizes.tolist() == [2 * 3, 2 * 4] * 2

    frames = []
    video = types.SimpleNamespace(add=lambda frame: frames.append(frame.shape))
    one = FoldedEnvironment(1, lambda: Drawn("rgb_array"), seed=0)
    evaluate(algorithm, one, 4, on_step=EpisodeRecorder(algorithm, one, video, 4))
    assert len(frames) == 2 * 4
    assert "draws 1 of" not in caplog.text


def test_what_cannot_be_folded_is_told():
    with pytest.raises(ConfigError, match="must be a multiple"):
        FoldedEnvironment(3, Walkers)
    with pytest.raises(ConfigError, match="its agents have different spaces"):
        FoldedEnvironment(2, Unequal)
    env = FoldedEnvironment(2, Silent)
    env.reset(0)
    with pytest.raises(EnvError, match="says nothing of walker_1"):
        env.step(torch.tensor([0, 0]))


# Two sides


class Chase(Walkers):
    """Who chases wins what the others lose: how far to the right it stands."""

    def __init__(self, lengths=(5, 5, 5), masks=None, sizes=(2, 2, 2)):
        super().__init__(lengths, masks)
        self._sizes = dict(zip(self.possible_agents, sizes, strict=True))

    def observation_space(self, agent):
        return spaces.Box(-100.0, 100.0, (self._sizes[agent],))

    def _seen(self):
        seen = super()._seen()
        return {a: np.resize(one, self._sizes[a]) for a, one in seen.items()}


ONE, TWO = "walker_0", ["walker_1", "walker_2"]


class Right(Opponent):
    """Notes what it sees, and goes to the right as the last of three."""

    def __init__(self):
        self.seen = []

    def act(self, game, state, seats, rng):
        self.seen.append((game.policy_input(state, seats), seats))
        return np.where((seats == 2) & (game.num_learners == 1), 2, 1)


def test_one_side_learns_and_the_other_is_played():
    right = Right()
    env = FoldedEnvironment(
        4,
        lambda: Chase((4, 6, 3), sizes=(5, 2, 2)),
        learners=TWO,
        opponents=[right],
        seed=0,
    )
    assert env.observation_spec["own"].shape == (2,)
    first = env.reset()
    assert torch.equal(first.observation["agent"], torch.eye(2).repeat(2, 1))
    games = [Chase((4, 6, 3), sizes=(5, 2, 2)) for _ in range(2)]
    before = [g.reset(seed=s)[0] for g, s in zip(games, seeds_of(env), strict=True)]
    won = np.zeros((2, 3))
    for t, action in enumerate(random_actions(4, 6)):
        step = env.step(action)
        if t < 4:  # the other side is out after four steps
            seen, seats = right.seen[t]
            assert seats.tolist() == [2, 2]
            assert np.array_equal(seen["own"], [one[ONE] for one in before])
            assert np.array_equal(seen["team"], seen["own"])
        for i, game in enumerate(games):
            chosen = {ONE: 1} | dict(zip(TWO, action[2 * i : 2 * i + 2], strict=True))
            chosen = {agent: chosen[agent] for agent in game.agents}
            before[i], rewards, *_ = game.step(chosen)
            for a, agent in enumerate(game.possible_agents):
                won[i, a] += rewards.get(agent, 0)
            rows = slice(2 * i, 2 * i + 2)
            own = [rewards.get(agent, 0) for agent in TWO]
            assert step.reward[rows].tolist() == pytest.approx(own)
            info = {
                key: torch.stack(nest.flatten(value), -1)[rows].tolist()
                for key, value in step.env_info.items()
            }
            assert info["returns"] == [pytest.approx(won[i].tolist())] * 2
            assert info["game_return"] == [[pytest.approx(won[i, 1:].sum())]] * 2
            outcome = won[i, 1:].mean() - won[i, 0]
            assert info["outcome"] == [[pytest.approx(outcome, abs=1e-5)]] * 2
            # The second one is out after three steps; the end counts once
            assert info["opponent"] == [[0], [0 if t < 2 else -1]]
    assert len(right.seen) == 4
    assert step.is_last().all()
    assert env.step(action).is_first().all()
    assert not any(leaf.any() for leaf in nest.flatten(env.current_time_step.env_info))


def test_each_agent_of_the_other_side_has_its_own_action():
    env = FoldedEnvironment(
        2, lambda: Chase(masks="info"), learners=[ONE], opponents=[Right()], seed=0
    )
    first = env.reset()
    step = env.step(torch.tensor([2, 0]))
    won = step.env_info["returns"]
    games = [Chase() for _ in range(2)]
    places = [g.reset(seed=s)[0] for g, s in zip(games, seeds_of(env), strict=True)]
    for agent, moves in ((ONE, (1, -1)), ("walker_1", (0, 0)), ("walker_2", (1, 1))):
        pairs = zip(places, moves, strict=True)
        expected = [float(place[agent][0]) + move for place, move in pairs]
        assert won[agent].tolist() == pytest.approx(expected)
    assert first.observation["action_mask"].tolist() == [[1, 0, 1]] * 2


def make_duel(**options):
    options = {"learners": [ONE], "num_snapshots": 2, "seed": 0} | options
    return FoldedEnvironment(6, lambda: Walkers((4, 5)), **options)


@pytest.mark.ci
def test_snapshots_play_the_other_side_and_open_games_are_resumed():
    config = TrainerConfig(num_iterations=9, unroll_length=8, random_seed=0)
    bots = [RandomOpponent()]
    env, again = make_duel(opponents=bots), make_duel(opponents=bots)
    algorithm = PPOAlgorithm(env=env, config=config)
    league = League(snapshot_interval=50, bot_share=0.5)
    training = types.SimpleNamespace(algorithm=algorithm)
    league.before_episodes(training)
    for _ in range(6):
        algorithm.train_iter()
        league.after_iter(training)
    assert league._num_snapshots > 2
    # 6 · 8 steps and the one that begins, of 6 games of 4 steps and a first one
    recent = next(m for m in algorithm.metrics if isinstance(m, RecentGames))
    games = sum(record.num_games for record in recent.records(str))
    assert games == 49 // 5 * 6
    assert (league.payoff.counts(0) > 0).any()
    state = env.episode_state()
    assert state["opponents"]["snapshots"]
    other = PPOAlgorithm(env=again, config=config)
    other.load_state_dict(algorithm.state_dict())
    assert again.restore_episodes(state, 7) == {}
    steps = [env.step(action) for action in random_actions(6, 20)]
    for step, action in zip(steps, random_actions(6, 20), strict=True):
        same = again.step(action)
        for a, b in zip(nest.flatten(step), nest.flatten(same), strict=True):
            assert torch.equal(a, b)


def test_a_policy_of_the_other_side_is_an_opponent():
    config = TrainerConfig(num_iterations=1, unroll_length=4, random_seed=0)
    sizes = {"sizes": (5, 2, 2)}
    trained = FoldedEnvironment(
        2,
        lambda: Chase(**sizes),
        learners=TWO,
        opponents=[RandomOpponent()],
        tells_team=False,
    )
    policy = TrainedPolicy(
        PPOAlgorithm(env=trained, config=config), trained, is_live=False
    )
    opponent = PolicyOpponent(policy, "two", deterministic=True)
    env = FoldedEnvironment(
        2, lambda: Chase(**sizes), learners=[ONE], opponents=[opponent], seed=0
    )
    env.reset()
    env.step(torch.tensor([1, 1]))
    expected = []
    for game in env._games.positions:
        for agent in (0, 1):
            own, who = game.seen[1 + agent], np.eye(2, dtype=np.float32)[agent]
            expected.append(int(policy.predict({"own": own, "agent": who}, True)))
    env.step(torch.tensor([1, 1]))
    played = [game.actions[-1][1:] for game in env._games.positions]
    assert played == [tuple(expected[:2]), tuple(expected[2:])]
    with pytest.raises(ConfigError, match="two was trained on"):
        FoldedEnvironment(2, Chase, learners=TWO, opponents=[opponent])


@pytest.mark.ci
def test_learning_beats_an_opponent_that_stands_still():
    env = FoldedEnvironment(
        16, lambda: Walkers((5, 5)), learners=[ONE], opponents=[Right()], seed=0
    )
    config = TrainerConfig(num_iterations=30, unroll_length=12, random_seed=0)
    algorithm = PPOAlgorithm(env=env, config=config, optimizer=Adam(lr=0.01))
    for _ in range(30):
        algorithm.train_iter()
    results = algorithm.metrics.results()
    # To the right at every step: 1 + 2 + 3 + 4 + 5, beside the place of the begin
    assert results["Games/score"] > 10
    assert results["AverageEnvInfo/last/returns/walker_0"] > 10


def test_an_evaluation_counts_an_agent_that_waits_once():
    env = FoldedEnvironment(4, lambda: Walkers((2, 5)), seed=0)
    config = TrainerConfig(num_iterations=1, unroll_length=4, random_seed=0)
    algorithm = PPOAlgorithm(env=env, config=config)
    result = evaluate(algorithm, env, 8)
    assert sorted(episode.length for episode in result.episodes) == [2] * 4 + [5] * 4


def test_an_evaluation_counts_a_game_whose_first_agent_is_out_early():
    env = FoldedEnvironment(
        4,
        lambda: Walkers((2, 5, 5)),
        learners=["walker_0", "walker_1"],
        opponents=[RandomOpponent()],
        seed=0,
    )
    config = TrainerConfig(num_iterations=1, unroll_length=4, random_seed=0)
    algorithm = PPOAlgorithm(env=env, config=config)
    games = evaluate(algorithm, env, 8).games
    assert sum(record.num_games for record in games) == 4


def test_sides_that_cannot_be_are_told():
    with pytest.raises(ConfigError, match="there are no opponents"):
        make_duel(num_snapshots=0)
    with pytest.raises(ConfigError, match="opponents have nobody to play"):
        make_duel(learners=None)
    with pytest.raises(ConfigError, match="learners must be some of the agents"):
        make_duel(learners=["walker_7"])
    with pytest.raises(ConfigError, match="sides that are alike"):
        FoldedEnvironment(2, Chase, learners=TWO, num_snapshots=1)
    with pytest.raises(ConfigError, match="for games of two who move in turn"):
        make_duel(opponents=[OnePlyOpponent()])
