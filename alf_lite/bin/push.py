"""Shares a policy: ``python -m alf_lite.bin.push runs/ppo user/name``."""

from __future__ import annotations

import sys

from absl.flags import FlagValues

from alf_lite.bin.program import CHECKPOINT, MAX_SEED, Flag, Program, checkpoint_of_flag

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
        required="under which name, such as user/ppo-cartpole?",
    ),
    CHECKPOINT,
    Flag("num_episodes", "Episodes of the evaluation on the card.", default=20, low=1),
    Flag(
        "video",
        "Upload a video of the worst, the median and the best episode. Needs pip "
        "install 'alf_lite[video]'.",
        default=False,
    ),
    Flag("private", "Nobody else sees it.", default=False),
    Flag("seed", "Seed of the episodes.", default=0, low=0, high=MAX_SEED),
)


def push(values: FlagValues) -> int:
    """Shares as the flags say; returns the exit code."""
    checkpoint = checkpoint_of_flag(values.checkpoint)

    from alf_lite.tools import report, sharing

    result = sharing.push_policy(
        values.root_dir,
        values.to,
        checkpoint=checkpoint,
        num_episodes=values.num_episodes,
        video=values.video,
        private=values.private,
        seed=values.seed,
    )
    print("\n".join(report.evaluation_lines(result.evaluation)))
    print(f"Shared:       {result.address} ({len(result.files)} files)")
    print(f'Load it:      alf_lite.load_policy("{result.name}")')
    return 0


PROGRAM = Program(
    name="push",
    summary="Shares the policy of a run on a hub, with its scores.",
    examples=(
        "--root_dir=runs/ppo --to=user/ppo-cartpole",
        "--root_dir=runs/ppo --to=user/ppo-cartpole --checkpoint=best --video",
    ),
    flags=FLAGS,
    run=push,
)

main = PROGRAM.main


if __name__ == "__main__":
    sys.exit(main())
