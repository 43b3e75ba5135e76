"""Shares a policy: ``alf_lite push --root_dir=runs/ppo --to=user/name``."""

from __future__ import annotations

from absl.flags import FlagValues

from alf_lite.bin.program import CHECKPOINT, SEED, Flag, Program, run_of_flags
from alf_lite.errors import ConfigError

FLAGS = (
    Flag(
        "root_dir",
        "Directory of the run. Its configuration is executed, and is uploaded as it "
        "is: look for paths in it.",
        required="which run should be shared?",
    ),
    Flag(
        "to",
        "user/name on the hub, made if it is not there. Needs pip install "
        "'alf_lite[hub]', and `hf auth login` before.",
        excludes="output",
    ),
    Flag(
        "output",
        "Write what would be uploaded into this folder, which load_policy takes, and "
        "upload nothing.",
    ),
    CHECKPOINT,
    Flag("num_episodes", "Episodes of the evaluation on the card.", default=20, low=1),
    Flag(
        "video",
        "Add a video of the worst, the median and the best episode. Needs pip "
        "install 'alf_lite[video]'.",
        default=False,
    ),
    Flag("private", "Nobody else sees it.", default=False, needs="to"),
    SEED._replace(help="Seed of the episodes."),
)


def push(values: FlagValues) -> int:
    """Shares as the flags say; returns the exit code."""
    root_dir, checkpoint = run_of_flags(values)

    from alf_lite.tools import report, sharing

    options = {
        "checkpoint": checkpoint,
        "num_episodes": values.num_episodes,
        "video": values.video,
        "seed": values.seed,
    }
    if values.output:
        evaluation = sharing.pack_policy(root_dir, values.output, **options)
        name, where = values.output, f"Written:      {values.output}"
    elif values.to:
        result = sharing.push_policy(
            root_dir, values.to, private=values.private, **options
        )
        name, evaluation = result.name, result.evaluation
        where = f"Shared:       {result.address} ({len(result.files)} files)"
    else:
        raise ConfigError(
            "where should it go? --to=user/ppo-cartpole uploads it, --output=FOLDER "
            "writes it there."
        )
    print("\n".join(report.evaluation_lines(evaluation)))
    print(where)
    print(f'Load it:      alf_lite.load_policy("{name}")')
    return 0


PROGRAM = Program(
    name="push",
    summary="Shares the policy of a run on a hub, with its scores.",
    examples=(
        "--root_dir=runs/ppo --to=user/ppo-cartpole",
        "--root_dir=runs/ppo --to=user/ppo-cartpole --checkpoint=best --video",
        "--root_dir=runs/ppo --output=policies/ppo_cart_pole",
    ),
    flags=FLAGS,
    run=push,
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
