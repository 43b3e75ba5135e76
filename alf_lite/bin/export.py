"""Exports a policy: ``python -m alf_lite.bin.export --root_dir=runs/ppo``."""

from __future__ import annotations

from absl.flags import FlagValues

from alf_lite.bin.program import (
    CHECKPOINT,
    GIN_PARAM,
    SEED,
    Flag,
    Program,
    run_of_flags,
)

FLAGS = (
    Flag(
        "root_dir",
        "Directory of the run. Its configuration is executed: export only runs "
        "that you trust.",
        required="which run should be exported?",
    ),
    CHECKPOINT,
    Flag(
        "format",
        "onnx, torch (a program of torch.export), or both. ONNX needs pip install "
        "'alf_lite[export]'.",
        default="onnx",
    ),
    Flag("out", "A new directory for the files. Default: export, in root_dir."),
    Flag(
        "sample",
        "Draw actions from the policy instead of taking the best ones; the noise "
        "is an input.",
        default=False,
    ),
    Flag(
        "num_steps",
        "Steps of two environments on which what was written is compared with the "
        "policy of the run; 0: on observations drawn from the space, without the "
        "environment.",
        default=500,
        low=0,
    ),
    Flag(
        "tolerance",
        "The largest difference of actions, as a part of half of their range.",
        default=1e-4,
        low=0.0,
    ),
    SEED._replace(help="Seed of what is compared on."),
    GIN_PARAM,
)


def export(values: FlagValues) -> int:
    """Exports as the flags say; returns the exit code."""
    root_dir, checkpoint = run_of_flags(values)

    from alf_lite.tools.policy_export import export_policy

    result = export_policy(
        root_dir,
        values.out,
        checkpoint=checkpoint,
        file_format=values.format,
        sample=values.sample,
        num_steps=values.num_steps,
        tolerance=values.tolerance,
        seed=values.seed,
        gin_params=values.gin_param,
    )
    print(f"Checkpoint:   {result.checkpoint}")
    for name, comparison in result.comparisons.items():
        ties = f", {comparison.num_ties} ties left out" if comparison.num_ties else ""
        print(
            f"Compared:     {name}: largest difference "
            f"{comparison.largest_difference:.3g} of half of an action's range "
            f"({comparison.num_actions} actions{ties})"
        )
    print(f"              on {result.observations}")
    for file in result.files:
        print(f"Written:      {file} ({file.stat().st_size / 1000:.1f} kB)")
    return 0


PROGRAM = Program(
    name="export",
    summary="Exports the policy of a run as ONNX or for torch.export.",
    examples=(
        "--root_dir=runs/ppo --checkpoint=best",
        "--root_dir=runs/ppo --format=both --out=policies/cart_pole",
        "--root_dir=runs/sac --sample",
    ),
    flags=FLAGS,
    run=export,
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
