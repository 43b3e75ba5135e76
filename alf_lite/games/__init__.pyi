# Written by `python -m tests.stubs`.

from alf_lite.games.battle_environment import BattleEnvironment as _BattleEnvironment
from alf_lite.games.board_games import (
    ConnectFour as ConnectFour,
    LineGame as LineGame,
    LineState as LineState,
    Nim as Nim,
    NimState as NimState,
    TicTacToe as TicTacToe,
)
from alf_lite.games.catalogue import create_game as create_game
from alf_lite.games.folded_environment import FoldedEnvironment as FoldedEnvironment
from alf_lite.games.game import (
    Game as Game,
    copy_rows as copy_rows,
    objects as objects,
    random_legal as random_legal,
    with_rows as with_rows,
)
from alf_lite.games.game_environment import (
    GameEnvironment as GameEnvironment,
    BothSeatsEnvironment as _BothSeatsEnvironment,
)
from alf_lite.games.game_tree import GameTree as GameTree
from alf_lite.games.league import League as League
from alf_lite.games.matches import (
    after_random_moves as after_random_moves,
    game_of_run as game_of_run,
    play_games as play_games,
)
from alf_lite.games.open_spiel import (
    MctsOpponent as MctsOpponent,
    OpenSpielGame as OpenSpielGame,
    SpielState as SpielState,
)
from alf_lite.games.opponent_pool import (
    OpponentPool as OpponentPool,
    Opponents as Opponents,
    Snapshots as Snapshots,
)
from alf_lite.games.opponents import (
    AverageOpponent as AverageOpponent,
    Opponent as Opponent,
    PerfectOpponent as PerfectOpponent,
    OnePlyOpponent as _OnePlyOpponent,
    RandomOpponent as _RandomOpponent,
    choose_rows as choose_rows,
)
from alf_lite.games.parallel_game import ParallelGame as ParallelGame
from alf_lite.games.payoff import (
    Payoff as Payoff,
    Ratings as Ratings,
    bradley_terry as bradley_terry,
    prioritized as prioritized,
)
from alf_lite.games.pettingzoo import (
    AgentSpaces as AgentSpaces,
    PettingZooGame as PettingZooGame,
    Position as Position,
    ZooGame as ZooGame,
    ZooState as ZooState,
)
from alf_lite.games.policy_opponents import (
    ExportedOpponent as ExportedOpponent,
    PolicyOpponent as PolicyOpponent,
    RunOpponent as RunOpponent,
    snapshots_of as snapshots_of,
)
from alf_lite.games.small_games import (
    KuhnPoker as KuhnPoker,
    KuhnState as KuhnState,
    MatrixGame as MatrixGame,
    MatrixState as MatrixState,
    rock_paper_scissors as rock_paper_scissors,
)
from alf_lite.tensor_specs import NestedTensorSpec
from collections.abc import Sequence

class RandomOpponent(_RandomOpponent):
    def __init__(
        self,
    ) -> None: ...

class OnePlyOpponent(_OnePlyOpponent):
    def __init__(
        self,
    ) -> None: ...

class BattleEnvironment(_BattleEnvironment):
    def __init__(
        self,
        num_environments: int,
        game: Game | str = 'tic_tac_toe',
        *,
        opponents: Sequence[Opponent] = ...,
        num_snapshots: int = 0,
        seat: int | None = None,
        num_random_moves: int = 0,
        max_episode_steps: int | None = None,
        num_learners: int = 1,
        env_info_spec: NestedTensorSpec,
        discount: float = 1.0,
        name: str | None = None,
        seed: int | None = None,
    ) -> None: ...

class BothSeatsEnvironment(_BothSeatsEnvironment):
    def __init__(
        self,
        num_environments: int,
        game: Game | str = 'tic_tac_toe',
        *,
        num_random_moves: int = 0,
        max_episode_steps: int | None = None,
        num_learners: int = 1,
        env_info_spec: NestedTensorSpec,
        discount: float = 1.0,
        name: str | None = None,
        seed: int | None = None,
    ) -> None: ...
