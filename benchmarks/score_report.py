"""The page about the stored runs, and its pictures; see ``scores.py``.

What is said there whatever the runs show is in ``scores/page.md``.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import score_tasks
import scores

from alf_lite.tools import comparison, pictures
from alf_lite.utils.statistics import (
    interquartile_mean,
    probability_of_improvement,
)

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "score_benchmark.md"
_MIN_SEEDS = 3  # of a method, for it to count in what is over all tasks
_NAMES = {"sb3": "SB3, our settings", "sb3_zoo": "SB3, the zoo's settings"}
_TITLES = {
    "core": "Beside Stable-Baselines3",
    "recipes": "Recipes beside SAC",
    "offline": "On recorded steps",
}
_ABOUT = {
    "core": (
        "alf_lite has the settings of its confs; Stable-Baselines3 (SB3) has the same "
        "ones, and those of rl-baselines3-zoo. P is how often a run of alf_lite is "
        "above one of the other, p the exact two-sided Mann-Whitney test."
    ),
    "recipes": (
        "Hopper and Walker2d with 100k steps, three tasks of dm_control with 50k, each "
        "action twice. P and p are against SAC."
    ),
    "offline": (
        "The data are all 10k steps of `collect_pendulum`. Steps are updates. P and p "
        "are against TD3+BC. No score is comparable with D4RL's."
    ),
}
_BASELINES = {"core": "alf_lite", "recipes": "SAC", "offline": "TD3+BC"}

_LEVEL = 0.05
_SHARES = np.linspace(0.1, 1.0, 10)  # of the steps of a run

Line = dict[str, Any]
Table = dict[str, dict[str, list[Line]]]  # task → method → its runs, by seed


def write(store: Path) -> int:
    """Writes the page and its pictures; returns the exit code.

    Raises:
        ConfigError: without the plot extra, before anything is written.
    """
    pictures.check_can_draw("a.png")
    PAGE.write_text(page(store, say=scores.say), encoding="utf-8")
    for suite in score_tasks.SUITES:
        table = _table(scores.counted(store, suite)[0], suite)
        if table:
            _draw_curves(suite, table)
            _draw_aggregate(suite, table)
    scores.say(f"written: {PAGE}")
    return 0


def page(store: Path, say: Any = lambda text: None) -> str:
    """The text of the page; ``say`` gets a sentence for each line that is left out."""
    parts = []
    for suite, jobs in score_tasks.SUITES.items():
        lines, notes = scores.counted(store, suite)
        for note in notes:
            say(note)
        total = sum(len(job.seeds) for job in jobs)
        parts.append(f"## {_TITLES[suite]}\n")
        state = f"{len(lines)} of {total} runs are finished"
        if not lines:
            parts.append(f"{_ABOUT[suite]} None of the {total} runs is finished.\n")
            continue
        parts.append(f"{_ABOUT[suite]} {state}{_machine(lines)}\n")
        table = _table(lines, suite)
        parts.append(f"![Curves of all seeds](score_benchmark_{suite}.png)\n")
        parts.append("\n".join(_rows(table, _BASELINES[suite])) + "\n")
        parts.append(_significant(table, _BASELINES[suite]))
        parts += _absent(suite, table)
        parts += _beside_the_zoo(table) if suite == "core" else []
        parts += _published(suite)
        parts += _aggregate(suite, table)
    template = (scores.STORE / "page.md").read_text(encoding="utf-8")
    return template.replace("<!-- results -->\n", "\n".join(parts))


def _machine(lines: Sequence[Line]) -> str:
    loads = [number for line in lines for number in line["load"]]
    dates = sorted(line["date"][:10] for line in lines)
    hours = sum(line["cpu_seconds"] for line in lines) / 3600
    used = ", ".join(sorted({line["commit"] for line in lines}))
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    known = Counter(line.get("processor", "not recorded") for line in lines)
    processors = ", ".join(f"{name}: {n}" for name, n in sorted(known.items()))
    return (
        f" ({hours:.1f} h of one core, {when}, commits {used}; runs by processor: "
        f"{processors}). Meanwhile the load of the machine was {min(loads):.1f} to "
        f"{max(loads):.1f}: beside other work a second of CPU does less."
    )


def _table(lines: Sequence[Line], suite: str) -> Table:
    """In the order of the suite."""
    table: Table = {}
    for job in score_tasks.SUITES[suite]:
        runs = [x for x in lines if (x["task"], x["method"]) == (job.task, job.method)]
        if runs:
            runs.sort(key=lambda line: line["seed"])
            table.setdefault(job.task, {})[job.method] = runs
    return table


# Single tasks


def _ends(runs: Sequence[Line]) -> np.ndarray:
    return np.array([line["scores"][-1] for line in runs])


def _rows(table: Table, baseline: str) -> list[str]:
    rows = [
        "| task, steps | method | mean ± sd | each seed | CPU s | P, p |",
        "|---|---|---|---|---|---|",
    ]
    for task, methods in table.items():
        for method, runs in methods.items():
            ends = _ends(runs)
            spread = f" ± {_short(ends.std(ddof=1))}" if len(ends) > 1 else ""
            seconds = statistics.median(line["cpu_seconds"] for line in runs)
            versus = ""
            if method != baseline and baseline in methods:
                versus = _versus(_ends(methods[baseline]), ends, baseline)
            rows.append(
                f"| `{task}`, {runs[0]['num_steps'] // 1000}k "
                f"| {_NAMES.get(method, method)} | {_short(ends.mean())}{spread} "
                f"| {' · '.join(map(_short, ends))} | {seconds:,.0f} | {versus} |"
            )
    return rows


def _significant(table: Table, baseline: str) -> str:
    """Names the rows with p < 0.05, on both sides, and those that Holm's test keeps."""
    found: dict[str, tuple[float, float]] = {}  # P, p
    for task, methods in table.items():
        for method, runs in methods.items():
            if method == baseline or baseline not in methods:
                continue
            base, other = _ends(methods[baseline]), _ends(runs)
            chance = float(probability_of_improvement(base, other))
            name = f"`{task}` {_NAMES.get(method, method)}"
            found[name] = chance, exact_p(base, other)
    below = {name for name, (_, p) in found.items() if p < _LEVEL}
    sides = (
        {n for n in below if (found[n][0] > 0.5) == side} for side in (True, False)
    )
    better, worse = (_named(found, side) for side in sides)
    kept = holm({name: p for name, (_, p) in found.items()})
    return (
        f"{baseline} is significantly (p < {_LEVEL}) above: {better}; below: {worse}. "
        f"With Holm's correction for the {len(found)} rows: {_named(found, kept)}.\n"
    )


def _named(names: Iterable[str], chosen: set[str]) -> str:
    return ", ".join(name for name in names if name in chosen) or "nowhere"


def holm(p_values: dict[str, float]) -> set[str]:
    """Those significant together: the smallest p of m below 0.05 / m, and so on."""
    kept: set[str] = set()
    for k, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        if p >= _LEVEL / (len(p_values) - k):
            break
        kept.add(name)
    return kept


def _absent(suite: str, table: Table) -> list[str]:
    tasks = dict.fromkeys(job.task for job in score_tasks.SUITES[suite])
    absent = ", ".join(f"`{task}`" for task in tasks if task not in table)
    return [f"No run yet: {absent}.\n"] if absent else []


def _beside_the_zoo(table: Table) -> list[str]:
    """P over the tasks for which the zoo means longer runs, and over the others."""
    groups: dict[bool, list[tuple[str, float]]] = {True: [], False: []}
    for task, methods in table.items():
        ours, zoo = methods.get("alf_lite", ()), methods.get("sb3_zoo", ())
        if min(len(ours), len(zoo)) >= _MIN_SEEDS:
            chance = float(probability_of_improvement(_ends(ours), _ends(zoo)))
            is_longer = score_tasks.ZOO_STEPS[task] > zoo[0]["num_steps"]
            groups[is_longer].append((task, chance))
    told = [
        f"{about} {np.mean([chance for _, chance in found]):.2f} ("
        + ", ".join(f"`{task}`" for task, _ in found)
        + ")"
        for about, found in (
            (
                "of those for which the zoo means longer runs",
                groups[True],
            ),
            ("of the others", groups[False]),
        )
        if found
    ]
    return [f"P against the zoo's settings, the mean of tasks: {'; '.join(told)}.\n"]


def _versus(base: np.ndarray, other: np.ndarray, baseline: str) -> str:
    """P that ours is better, or that a recipe is better than what it extends."""
    pair = (base, other) if baseline == "alf_lite" else (other, base)
    chance = float(probability_of_improvement(*pair))
    return f"{chance:.2f}, {exact_p(base, other):.3f}"


def exact_p(one: np.ndarray, other: np.ndarray) -> float:
    """Two-sided Mann-Whitney test, ties counted half, by all divisions of the runs."""
    everything, size = np.concatenate([one, other]), len(one)

    def distance(chosen: Sequence[int]) -> float:
        rest = np.delete(everything, chosen)
        chance = probability_of_improvement(everything[list(chosen)], rest)
        return abs(float(chance) - 0.5)

    seen = distance(range(size))
    divisions = itertools.combinations(range(len(everything)), size)
    return float(np.mean([distance(c) >= seen - 1e-12 for c in divisions]))


def _short(number: float) -> str:
    """With as many digits as can mean something."""
    digits = 0 if abs(number) >= 1000 else 1 if abs(number) >= 10 else 2
    return f"{number:,.{digits}f}"


def _published(suite: str) -> list[str]:
    if suite != "recipes":
        return []
    told = json.loads((scores.STORE / "published.json").read_text())
    rows = [
        "Published:\n",
        f"| | {' | '.join(told['methods'])} |",
        "|---" * (len(told["methods"]) + 1) + "|",
    ]
    for env_id, values in told["scores"].items():
        cells = ["" if value is None else f"{value:,}" for value in values]
        rows.append(f"| {env_id} | {' | '.join(cells)} |")
    return ["\n".join(rows) + "\n", f"{told['source']}\n"]


# All tasks together


def _common(table: Table, suite: str) -> Table:
    """The methods with runs enough of two tasks or more, in the tasks that all have.

    None if that is one method, or one task.
    """
    enough = {
        method: {t for t, of in table.items() if len(of.get(method, ())) >= _MIN_SEEDS}
        for method in {job.method for job in score_tasks.SUITES[suite]}
    }
    compared = {method: tasks for method, tasks in enough.items() if len(tasks) > 1}
    common = set(table).intersection(*compared.values())
    if len(compared) < 2 or len(common) < 2:
        return {}
    return {
        task: {method: runs for method, runs in found.items() if method in compared}
        for task, found in table.items()
        if task in common
    }


def _scaled(table: Table, values: Any) -> list[comparison.Scores]:
    """Of every method in all tasks, on the scale of ``scale.json``."""
    told = json.loads((scores.STORE / "scale.json").read_text())
    ranges, raw = {}, {}
    for task, methods in table.items():
        scale = told[next(iter(methods.values()))[0]["env_id"]]
        ranges[task] = scale["random"], scale["reference"]
        for method, runs in methods.items():
            name = _NAMES.get(method, method)
            raw.setdefault(name, {})[task] = values(task, runs)
    each = [comparison.Scores(name, found, dict(found)) for name, found in raw.items()]
    return comparison.scale(each, ranges, [])


def _at_equal_cpu(table: Table) -> Any:
    """The scores that there are when the fastest method of the task has ended."""
    budgets = {
        task: min(
            statistics.median(line["cpu_seconds"] for line in runs)
            for runs in methods.values()
        )
        for task, methods in table.items()
    }

    def values(task: str, runs: Sequence[Line]) -> np.ndarray:
        found = []
        for line in runs:
            seen = [
                score
                for score, seconds in zip(line["scores"], line["cpu"], strict=True)
                if seconds <= 1.05 * budgets[task]
            ]
            found.append(seen[-1] if seen else line["scores"][0])
        return np.array(found)

    return values


def _everywhere(table: Table) -> Table:
    """All tasks, with the methods that have runs enough of each."""
    methods = [
        method
        for method in next(iter(table.values()))
        if all(len(of.get(method, ())) >= _MIN_SEEDS for of in table.values())
    ]
    return {task: {m: found[m] for m in methods} for task, found in table.items()}


def _aggregate(suite: str, table: Table) -> list[str]:
    common = _common(table, suite)
    if not common:
        few = f"Fewer than two tasks have {_MIN_SEEDS} seeds of the same methods"
        return [f"{few} so far: nothing is said over all of them.\n"]
    parts = [
        f"Over {_tasks(common)} ({_MIN_SEEDS} seeds or more of each method here), "
        "where a policy that acts at random counts as 0 and the reference of "
        "`scale.json` as 1; 95 % intervals by the bootstrap within each task:\n",
        f"![Means, profiles](score_benchmark_{suite}_all.png)\n",
        _sums(common),
    ]
    everywhere = _everywhere(table)
    if len(everywhere) > len(common) and len(everywhere[next(iter(common))]) > 1:
        parts += [
            f"Over {_tasks(everywhere)}, of which not all methods have runs:\n",
            _sums(everywhere),
        ]
    return parts


def _tasks(table: Table) -> str:
    return ", ".join(f"`{task}`" for task in table)


def _sums(table: Table) -> str:
    """Of methods that have runs of each task, over all of them."""
    rows = [
        "| method | IQM | optimality gap | IQM at equal CPU |",
        "|---|---|---|---|",
    ]
    ends = _scaled(table, lambda _, runs: _ends(runs))
    by_cpu = _scaled(table, _at_equal_cpu(table))
    for final, early in zip(ends, by_cpu, strict=True):
        samples, sooner = final.scaled.values(), early.scaled.values()
        numbers = (
            comparison.estimate(comparison.pooled(interquartile_mean), *samples),
            comparison.estimate(comparison.pooled(comparison.optimality_gap), *samples),
            comparison.estimate(comparison.pooled(interquartile_mean), *sooner),
        )
        rows.append(f"| {final.label} | {' | '.join(map(_estimate, numbers))} |")
    for title, found in (("After all steps", ends), ("At equal CPU time", by_cpu)):
        pairs = [
            f"{pair.better} above {pair.worse} {_estimate(pair.probability)}"
            for pair in comparison.improvements(found)
        ]
        rows.append(f"\n{title}, how often a run is better: {'; '.join(pairs)}.")
    rows.append(f"\n{_without_one(ends)}")
    return "\n".join(rows) + "\n"


def _without_one(each: Sequence[comparison.Scores]) -> str:
    """How far the first IQM is above the others' if one task is left out."""

    def iqm(of: comparison.Scores, task: str) -> float:
        rest = [values for name, values in of.scaled.items() if name != task]
        return float(interquartile_mean(np.concatenate(rest)))

    first, *others = each
    told = []
    for other in others:
        above = {t: iqm(first, t) - iqm(other, t) for t in first.scaled}
        least, most = (
            min(above, key=above.__getitem__),
            max(above, key=above.__getitem__),
        )
        told.append(
            f"{above[least]:.2f} (without `{least}`) to {above[most]:.2f} (without "
            f"`{most}`) above {other.label}"
        )
    return f"If a task is left out, the IQM of {first.label} is {'; '.join(told)}."


def _estimate(number: comparison.IntervalEstimate) -> str:
    if number.interval is None:
        return f"{number.value:.2f}"
    low, high = number.interval
    return f"{number.value:.2f} [{low:.2f}, {high:.2f}]"


# Pictures


def _draw_aggregate(suite: str, table: Table) -> None:
    if common := _common(table, suite):
        ends = _scaled(common, lambda _, runs: _ends(runs))
        file = DOCS / f"score_benchmark_{suite}_all.png"
        comparison.draw(file, ends, comparison.improvements(ends), "scaled score")
        _shrink(file)


def _draw_curves(suite: str, table: Table) -> None:
    """Every seed thin, the mean thick, and the last scores as dots beside it."""
    names = list(dict.fromkeys(m for methods in table.values() for m in methods))
    styles = {
        _NAMES.get(name, name): pictures.line_style(i) for i, name in enumerate(names)
    }
    common = _common(table, suite)
    num_panels = len(table) + bool(common)
    columns = min(4, num_panels)
    shape = -(-num_panels // columns), columns
    panel = (2.1, 1.7) if columns > 1 else (4.4, 2.4)  # as wide as the names need
    file = DOCS / f"score_benchmark_{suite}.png"
    with pictures.picture(file, *shape, panel) as (figure, all_axes):
        for axes, (task, methods) in zip(all_axes, table.items(), strict=False):
            axes.set_title(task, fontsize=7)
            pictures.short_numbers(axes.xaxis)
            for name, runs in methods.items():
                style = styles[_NAMES.get(name, name)]
                for line in runs:
                    axes.plot(line["steps"], line["scores"], **style, lw=0.5, alpha=0.5)
                num_steps = runs[0]["num_steps"]
                means = [_at_share(share)(task, runs).mean() for share in _SHARES]
                axes.plot(_SHARES * num_steps, means, **style)
                axes.set_xticks(num_steps * np.linspace(0, 1, 3))
                beside = num_steps * (1.06 + 0.05 * names.index(name))
                axes.scatter([beside] * len(runs), _ends(runs), 5, style["color"])
        if common:
            whose = "all" if len(common) == len(table) else f"{len(common)} tasks"
            _draw_efficiency(all_axes[len(table)], common, styles, whose)
        for axes in all_axes:
            axes.tick_params(labelsize=6)
        figure.supxlabel("updates" if suite == "offline" else "steps", fontsize=7)
        figure.supylabel("mean return", fontsize=7)
        for axes in all_axes[num_panels:]:
            axes.set_visible(False)
        pictures.legend(figure, styles)
    _shrink(file)


def _shrink(file: Path) -> None:
    """Fewer colours, so a quarter of the size."""
    from PIL import Image

    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(48, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


def _draw_efficiency(axes: Any, common: Table, styles: Any, whose: str) -> None:
    """IQM of the scaled scores of the tasks against the share of the steps."""
    for share in _SHARES:
        for found in _scaled(common, _at_share(share)):
            pooled = np.concatenate(list(found.scaled.values()))
            colour = styles[found.label]["color"]
            axes.plot(share, interquartile_mean(pooled), "o", ms=3, color=colour)
    axes.set_title(f"IQM of {whose}, share of the steps", fontsize=7)


def _at_share(share: float) -> Any:
    """The scores when a share of the steps was done, between two evaluations."""

    def values(task: str, runs: Sequence[Line]) -> np.ndarray:
        del task
        steps = share * runs[0]["num_steps"]
        return np.array([np.interp(steps, x["steps"], x["scores"]) for x in runs])

    return values
