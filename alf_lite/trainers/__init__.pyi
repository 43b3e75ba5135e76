# Written by `python -m tests.stubs`.

from alf_lite.trainers.collector import (
    AlgorithmPolicy as AlgorithmPolicy,
    Amount as Amount,
    CollectionPolicy as CollectionPolicy,
    EpsilonGreedyPolicy as EpsilonGreedyPolicy,
    NumEpisodes as NumEpisodes,
    NumSteps as NumSteps,
    RandomPolicy as RandomPolicy,
    ScriptedPolicy as ScriptedPolicy,
    collect as collect,
    import_function as import_function,
)
from alf_lite.trainers.curves import (
    Curve as Curve,
    Curves as Curves,
    CurvesOfRuns as CurvesOfRuns,
    find_runs as find_runs,
    nothing_logged as nothing_logged,
    read_curves as read_curves,
)
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
from alf_lite.trainers.evaluator import (
    EvalEpisode as EvalEpisode,
    EvalResult as EvalResult,
    Video as Video,
    evaluate as evaluate,
    quotas as quotas,
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
from alf_lite.trainers.player import (
    EpisodeRecorder as EpisodeRecorder,
    PlayResult as PlayResult,
    play as play,
)
from alf_lite.trainers.policy_check import (
    Comparison as Comparison,
    Watched as Watched,
    WatchedStep as WatchedStep,
    compare as compare,
    watch as watch,
)
from alf_lite.trainers.policy_export import (
    ExportResult as ExportResult,
    export_policy as export_policy,
)
from alf_lite.trainers.policy_graph import (
    NoiseFrom as NoiseFrom,
    NoiseRecorder as NoiseRecorder,
    PolicyGraph as PolicyGraph,
    Port as Port,
    blame as blame,
)
from alf_lite.trainers.progress_bar import (
    ProgressBar as ProgressBar,
    cells as cells,
    evaluation_text as evaluation_text,
)
from alf_lite.trainers.progress_display import (
    NoDisplay as NoDisplay,
    ProgressDisplay as ProgressDisplay,
    ProgressLines as ProgressLines,
    RunDisplay as RunDisplay,
    choose_display as choose_display,
    create_progress_display as create_progress_display,
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
from alf_lite.trainers.rank_checkpoints import (
    load_together as load_together,
    part_of_rank as part_of_rank,
    ranks_entry as ranks_entry,
    write_together as write_together,
)
from alf_lite.trainers.rebuilding import (
    ConfWriter as ConfWriter,
    Given as Given,
    defined_here as defined_here,
    given_in_python as given_in_python,
    importable_name as importable_name,
    is_or_are as is_or_are,
    only_from_here as only_from_here,
    only_from_python as only_from_python,
    what_was_given as what_was_given,
    without_partials as without_partials,
)
from alf_lite.trainers.run_checkpoints import (
    RunCheckpoints as RunCheckpoints,
    config_texts as config_texts,
    run_id_of as run_id_of,
)
from alf_lite.trainers.run_directory import (
    RunDirectory as RunDirectory,
    changed_lines as changed_lines,
)
from alf_lite.trainers.run_evaluations import (
    EvaluatedPolicy as EvaluatedPolicy,
    RunEvaluations as RunEvaluations,
    is_evaluation_due as is_evaluation_due,
)
from alf_lite.trainers.run_lock import RunLock as RunLock
from alf_lite.trainers.run_plan import (
    RunPlan as RunPlan,
    slow_settings as slow_settings,
    trainable as trainable,
)
from alf_lite.trainers.run_policy import (
    acting_config as acting_config,
    build_policy as build_policy,
    build_untrained as build_untrained,
    load_policy_checkpoint as load_policy_checkpoint,
    read_run_config as read_run_config,
    run_conf as run_conf,
)
from alf_lite.trainers.run_ranks import (
    Agreement as Agreement,
    agree as agree,
    check_same_config as check_same_config,
    directory_of_rank as directory_of_rank,
    hooks_of_rank as hooks_of_rank,
)
from alf_lite.trainers.run_record import (
    RunRecord as RunRecord,
    Save as Save,
    TrainResult as TrainResult,
    conf_of as conf_of,
    earlier_processes as earlier_processes,
    end_entries as end_entries,
    keep_what_is_whole as keep_what_is_whole,
    open_files as open_files,
    script_of as script_of,
    to_text as to_text,
)
from alf_lite.trainers.shipped_hooks import (
    BestModel as BestModel,
    Curriculum as Curriculum,
    EarlyStop as EarlyStop,
    VideoRecorder as VideoRecorder,
    number_of as number_of,
)
from alf_lite.trainers.signals import (
    BrokenOffError as BrokenOffError,
    StopSignals as StopSignals,
)
from alf_lite.trainers.tracking_hooks import (
    MlflowHook as MlflowHook,
    TrackingHook as TrackingHook,
    WandbHook as WandbHook,
)
from alf_lite.trainers.train_summaries import (
    average_return as average_return,
    axis as axis,
    is_due as is_due,
    losses_in as losses_in,
    metric_results as metric_results,
    summarize_config as summarize_config,
    summarize_evaluation as summarize_evaluation,
    summarize_iteration as summarize_iteration,
    summarize_metrics as summarize_metrics,
)
from alf_lite.trainers.trained_policy import (
    build_to_predict as build_to_predict,
    directory_of as directory_of,
    load_policy as load_policy,
)
from alf_lite.trainers.trainer import Trainer as Trainer, train as train
from alf_lite.trainers.training_state import (
    RunState as RunState,
    capture as capture,
    check_fingerprint as check_fingerprint,
    check_finite as check_finite,
    check_parts as check_parts,
    described_specs as described_specs,
    entry as entry,
    fingerprint as fingerprint,
    part_of as part_of,
    restore as restore,
)
from alf_lite.trainers.videos import (
    VideoFile as VideoFile,
    VideoSettings as VideoSettings,
    captioned as captioned,
    check_can_record as check_can_record,
    frames_per_second as frames_per_second,
    num_environments_drawn as num_environments_drawn,
    record_episodes as record_episodes,
    worst_median_best as worst_median_best,
)
