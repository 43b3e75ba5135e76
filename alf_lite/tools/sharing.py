"""Shares the policy of a run: what acting needs, a card with its scores, a video."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

import alf_lite
from alf_lite.checkpoints import files as checkpoint_files
from alf_lite.checkpoints.checkpointer import LoadedCheckpoint
from alf_lite.errors import ConfigError, needs_extra
from alf_lite.policies.evaluator import EvalResult
from alf_lite.policies.hub import SCHEME, reaching_the_hub, repository_of
from alf_lite.policies.run_policy import load_policy_checkpoint
from alf_lite.runs import training_state
from alf_lite.runs.directory import RUN_FILE, USER_CONFIG, RunDirectory
from alf_lite.tools.player import PlayResult, play

# Of run.json, what tells how the policy came to be; nothing of the machine
_TOLD = (
    *("conf", "seed", "alf_lite", "packages", "iterations", "env_steps"),
    *("num_updates", "seconds", "stop_reason", "given_in_python"),
)
VIDEO = "replay.mp4"
# How actions were chosen, in words, that ``evaluate`` chooses so, too
_HOW_GREEDY = {0.0: "with the best actions"}
_HOW_DRAWN = {**_HOW_GREEDY, 1.0: "with drawn actions"}  # where it can draw


class PushResult(NamedTuple):
    """What was shared, and where it is now."""

    name: str  # as load_policy takes it
    address: str
    evaluation: EvalResult
    files: list[str]


def push_policy(
    run: str | os.PathLike[str],
    name: str,
    *,
    checkpoint: str | int = "latest",
    num_episodes: int = 20,
    video: bool = False,
    private: bool = False,
    seed: int = 0,
) -> PushResult:
    """Uploads the policy of a run, evaluated anew, with a card that tells its scores.

    What is shared is the configuration, the parameters that acting needs, and of the
    run's record what says how it was trained: no buffer, no optimizer, no name of a
    machine, command or folder. The configuration goes as it was given: look for paths
    in it.

    Args:
        run: the directory of the run. Its configuration is executed.
        name: ``user/name``, with or without ``hf://``; made if it is not there.
            ``user/name@branch`` for a branch that there is.
        checkpoint: "latest", "best" or a step.
        num_episodes: of the evaluation.
        video: of the worst, the median and the best episode; needs the extra ``video``.
        private: whether a repository that is made is private.
        seed: of the episodes.

    Raises:
        ConfigError: if there is no such run, it was given things in Python that a conf
            cannot say, or the hub refuses.
        CheckpointError: if the checkpoint cannot be used.
        MissingExtraError: without the extra ``hub``.
    """
    repository, revision = repository_of(name)
    name = f"{SCHEME}{repository}" + (f"@{revision}" if revision else "")
    with needs_extra("Sharing policies", "hub"):
        from huggingface_hub import HfApi
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "policy"
        options = (checkpoint, num_episodes, video, seed)
        evaluation = pack_policy(run, folder, name, *options)
        files = [p.relative_to(folder) for p in folder.rglob("*") if p.is_file()]
        with reaching_the_hub(name):
            api = HfApi()
            address = api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repository,
                folder_path=folder,
                revision=revision,
                commit_message=f"Policy of {evaluation.mean:.2f}",
                delete_patterns=["checkpoints/*", VIDEO],  # of an earlier policy
            )
    names = sorted(map(str, files))
    return PushResult(name, str(address), evaluation, names)


def pack_policy(
    run: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    name: str | None = None,
    checkpoint: str | int = "latest",
    num_episodes: int = 20,
    video: bool = False,
    seed: int = 0,
) -> EvalResult:
    """Writes into a folder what :func:`push_policy` uploads; ``load_policy`` takes it.

    Args:
        run: the directory of the run. Its configuration is executed.
        folder: is made, or is empty; it is written whole or not at all.
        name: by which the card loads it; the folder by default.
        checkpoint: "latest", "best" or a step.
        num_episodes: of the evaluation.
        video: of the worst, the median and the best episode; needs the extra ``video``.
        seed: of the episodes.

    Raises:
        ConfigError: as of :func:`push_policy`, or if there are files in the folder.
        CheckpointError: if the checkpoint cannot be used.
        MissingExtraError: without the extra ``hub``, which writes the card.
    """
    with needs_extra("Sharing policies", "hub"):
        import huggingface_hub  # noqa: F401 - before the episodes are played
    name, target = name or os.fspath(folder), Path(folder).expanduser().resolve()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise ConfigError(f"{folder} has files. Choose a folder that is new or empty.")
    directory = RunDirectory(run)
    conf = directory.read_user_config()
    if directory.earlier_record.get("given_in_python"):
        given = ", ".join(directory.earlier_record["given_in_python"])
        raise ConfigError(
            f"{directory.path}: {given} was given in Python, and is in no conf: nobody "
            "else could build this policy. Export it instead: alf_lite export"
        )
    loaded = load_policy_checkpoint(directory.path, checkpoint)
    with checkpoint_files.new_output(target, replace_file=True) as written:
        written.mkdir()
        played = play(
            directory.path,
            num_episodes,
            checkpoint=loaded.step,
            record_file=written / VIDEO if video else None,
            record="worst_median_best" if video else "all",
            seed=seed,
        )
        _write(written, name, directory, loaded, played, conf, seed)
    return played.evaluation


def _write(
    folder: Path,
    name: str,
    directory: RunDirectory,
    loaded: LoadedCheckpoint,
    played: PlayResult,
    conf: str,
    seed: int,
) -> None:
    """All files but the video."""
    (folder / USER_CONFIG).write_text(conf, encoding="utf-8")
    manifest = checkpoint_files.read_manifest(loaded.path)
    kept = {k: v for k, v in manifest.items() if k not in ("format", "schema", "files")}
    file = training_state.ALGORITHM + ".pt"
    checkpoint_files.write(
        folder / "checkpoints" / loaded.path.name,
        {file: (loaded.path / file).read_bytes()},
        kept | {"resumable": False, "best_score": None},
    )
    record = {k: v for k, v in directory.earlier_record.items() if k in _TOLD}
    text = json.dumps(record, indent=1) + "\n"
    (folder / RUN_FILE).write_text(text, encoding="utf-8")
    card = _card(name, record, loaded.metadata, played, conf, seed)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _is_named(environment: str, played: PlayResult) -> bool:
    """Whether ``evaluate`` makes such environments by that name alone.

    It does not make a game, one of one's own, or one with settings of the run.
    """
    given = played.created_with
    return (
        environment in gymnasium.registry
        and given is not None
        and given["env_name"].rpartition(":")[2] == environment
        and given["max_episode_steps"] is None
        and not any(given[name] for name in ("env_ctor", "env_kwargs", "wrappers"))
    )


def _card(
    name: str,
    record: Mapping[str, Any],
    metadata: Mapping[str, Any],
    played: PlayResult,
    conf: str,
    seed: int,
) -> str:
    """The page of the policy, with what tables of scores read."""
    from huggingface_hub import EvalResult as Score
    from huggingface_hub import ModelCard, ModelCardData

    evaluation = played.evaluation
    environment = (metadata.get("environment") or {}).get("name") or "environment"
    algorithm = metadata["algorithm"].removesuffix("Algorithm")
    score = f"{evaluation.mean:.2f} +/- {evaluation.std:.2f}"
    hows = _HOW_DRAWN if played.can_draw else _HOW_GREEDY
    how = hows.get(
        played.epsilon_greedy, f"with epsilon_greedy = {played.epsilon_greedy}"
    )
    drawn = ", deterministic=False" if played.epsilon_greedy == 1 else ""
    use = f'print(alf_lite.evaluate(policy, "{environment}"{drawn}).mean)'
    if played.epsilon_greedy not in hows or not _is_named(environment, played):
        use = "policy.predict(observation)  # of one step, or of a batch"
    data = ModelCardData(
        library_name="alf_lite",
        tags=["reinforcement-learning", "deep-reinforcement-learning", environment],
        model_name=algorithm,
        eval_results=[
            Score(
                task_type="reinforcement-learning",
                task_name="reinforcement-learning",
                dataset_type=environment,
                dataset_name=environment,
                metric_type="mean_reward",
                metric_value=score,
                metric_name="mean_reward",
                verified=False,
            )
        ],
    )
    interval = ""  # one episode has none
    if evaluation.ci95 is not None:
        low, high = evaluation.ci95
        interval = f", 95 % interval [{low:.2f}, {high:.2f}]"
    version = (record.get("alf_lite") or {}).get("version", alf_lite.__version__)
    trained = record.get("env_steps", metadata.get("env_steps"))
    rows = {
        "mean return": f"{evaluation.mean:.2f}{interval}",
        "of": f"{len(evaluation.returns)} episodes {how}, seed {seed}, "
        f"from {evaluation.min:.2f} to {evaluation.max:.2f}",
        **{
            f"against {g.opponent}, seat {g.seat}": f"won {g.won}, drawn {g.drawn}, "
            f"lost {g.lost}"
            for g in evaluation.games
        },
        "trained": f"{trained} environment steps, {played.step} iterations, "
        f"conf {record.get('conf')}, seed {record.get('seed')}",
        "with": f"alf_lite {version}",
    }
    if evaluation.games:
        rows = {"score": f"{evaluation.score:+.3f} (mean outcome)", **rows}
        del rows["mean return"]
    table = "\n".join(f"| {row} | {value} |" for row, value in rows.items())
    needs = "  # pip install 'alf_lite[hub]'" if name.startswith(SCHEME) else ""
    text = f"""# {algorithm} on {environment}

| | |
|---|---|
{table}

```python
import alf_lite

policy = alf_lite.load_policy("{name}"){needs}
{use}
```

The configuration, with which `alf_lite train --conf=user.gin` trains it again:

```gin
{conf.strip()}
```
"""
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}"))
