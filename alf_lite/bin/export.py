"""Exports a policy: ``python -m alf_lite.bin.export --root_dir=runs/ppo``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from absl import flags

from alf_lite.bin import program
from alf_lite.errors import ConfigError


def define_flags() -> flags.FlagValues:
    """The flags and their defaults."""
    values = flags.FlagValues()
    flags.DEFINE_string(
        "root_dir",
        None,
        "Directory of the run. Its configuration is executed: export only runs that "
        "you trust.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "checkpoint",
        "latest",
        "Which policy: latest, best (by the evaluations during training), or the step "
        "of a checkpoint. Default: latest.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "format",
        "onnx",
        "onnx, torch (a program of torch.export), or both. ONNX needs pip install "
        "'alf_lite[export]'. Default: onnx.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "out",
        None,
        "A new directory for the files. Default: export, in root_dir.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "sample",
        False,
        "Draw actions from the policy instead of taking the best ones; the noise is an "
        "input.",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "num_steps",
        500,
        "Steps of two environments on which what was written is compared with the "
        "policy of the run; 0: on observations drawn from the space, without the "
        "environment. Default: 500.",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_float(
        "tolerance",
        1e-4,
        "The largest difference of actions, as a part of half of their range. Default: "
        "0.0001.",
        lower_bound=0.0,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "seed",
        0,
        "Seed of what is compared on. Default: 0.",
        lower_bound=0,
        upper_bound=program.MAX_SEED,
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "gin_param",
        [],
        "A setting that overrides the configuration of the run.",
        flag_values=values,
    )
    return values


def export(values: flags.FlagValues) -> int:
    """Exports as the flags say; returns the exit code."""
    if not values.root_dir:
        raise ConfigError("--root_dir is missing: which run should be exported?")
    checkpoint = program.checkpoint(values.checkpoint)

    from alf_lite.tools.policy_export import export_policy

    result = export_policy(
        values.root_dir,
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


PROGRAM = program.Program(
    name="export",
    summary="Exports the policy of a run as ONNX or for torch.export.",
    examples=(
        "--root_dir=runs/ppo --checkpoint=best",
        "--root_dir=runs/ppo --format=both --out=policies/cart_pole",
        "--root_dir=runs/sac --sample",
    ),
    define_flags=define_flags,
    run=export,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return program.main(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
