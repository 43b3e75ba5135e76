# Written by `python -m tests.stubs`.

from alf_lite.trainers.dataset_evaluator import (
    DatasetEvaluator as DatasetEvaluator,
    action_error as action_error,
)
from alf_lite.trainers.evaluation_process import EvaluationProcess as EvaluationProcess
from alf_lite.trainers.evaluation_worker import (
    EvalParts as EvalParts,
    EvalRecipe as EvalRecipe,
    EvalRequest as EvalRequest,
    EvalWorkerSettings as EvalWorkerSettings,
    create_eval_env as create_eval_env,
    policy_memory as policy_memory,
    serve as serve,
)
from alf_lite.trainers.evaluations import (
    RunEvaluations as RunEvaluations,
    is_evaluation_due as is_evaluation_due,
)
from alf_lite.trainers.hooks import (
    Hook as Hook,
    Hooks as Hooks,
    ReplaySaver as ReplaySaver,
    Training as Training,
    build_hooks as build_hooks,
    check_hooks as check_hooks,
)
from alf_lite.trainers.level_replay import LevelReplay as LevelReplay
from alf_lite.trainers.noise_scale import (
    GradientNoiseScale as GradientNoiseScale,
    NoiseScale as NoiseScale,
)
from alf_lite.trainers.progress_display import (
    ProgressBar as ProgressBar,
    ProgressDisplay as ProgressDisplay,
    ProgressLines as ProgressLines,
    RunDisplay as RunDisplay,
    cells as cells,
    choose_display as choose_display,
    create_progress_display as create_progress_display,
    evaluation_text as evaluation_text,
)
from alf_lite.trainers.progress_measures import (
    Measures as Measures,
    SpeedMeter as SpeedMeter,
    Status as Status,
    TimeToGo as TimeToGo,
    few_losses as few_losses,
    format_return as format_return,
    format_seconds as format_seconds,
    format_speed as format_speed,
)
from alf_lite.trainers.run_end import (
    TrainResult as TrainResult,
    end_entries as end_entries,
    keep_what_is_whole as keep_what_is_whole,
    open_files as open_files,
)
from alf_lite.trainers.run_plan import (
    RunPlan as RunPlan,
    idle_parts as idle_parts,
    idle_settings as idle_settings,
    slow_settings as slow_settings,
    trainable as trainable,
)
from alf_lite.trainers.run_ranks import (
    Agreement as Agreement,
    agree as agree,
    check_same_config as check_same_config,
    directory_of_rank as directory_of_rank,
    hooks_of_rank as hooks_of_rank,
)
from alf_lite.trainers.shipped_hooks import (
    BestModel as BestModel,
    Curriculum as Curriculum,
    EarlyStop as EarlyStop,
    number_of as number_of,
)
from alf_lite.trainers.signals import (
    BrokenOffError as BrokenOffError,
    StopSignals as StopSignals,
)
from alf_lite.trainers.train_summaries import (
    average_return as average_return,
    axis as axis,
    is_due as is_due,
    losses_in as losses_in,
    summarize_config as summarize_config,
    summarize_evaluation as summarize_evaluation,
    summarize_iteration as summarize_iteration,
    summarize_metrics as summarize_metrics,
)
from alf_lite.trainers.trainer import Trainer as Trainer, train as train
