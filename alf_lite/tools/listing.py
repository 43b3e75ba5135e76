"""What comes with the library: confs with their scores, algorithms, environments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl.flags import FlagValues

from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.tools.text_tables import aligned

_NOTHING = "-"


class Listing(NamedTuple):
    """One kind of thing."""

    rows: Callable[[], list[dict[str, Any]]]
    columns: Sequence[str]  # that are shown; --json has the others, too
    text: Callable[[dict[str, Any]], str]  # more of a single one


def list_things(values: FlagValues) -> int:
    """Prints a table; returns the exit code."""
    what, *words = values.what
    if what not in LISTINGS:
        raise ConfigError(
            f"{what!r} cannot be listed.{did_you_mean(what, LISTINGS)} There are "
            f"{', '.join(LISTINGS)}."
        )
    listing = LISTINGS[what]
    rows = listing.rows()
    found = [row for row in rows if _has_all(row, listing.columns, words)]
    # A name means that one, though others may have it in theirs.
    found = [row for row in found if [row["name"]] == words] or found
    if values.json:
        print(json.dumps(found))
        return 0
    if not found:
        names = [row["name"] for row in rows]
        hint = did_you_mean(" ".join(words), names)
        raise ConfigError(f"no {what} with {' '.join(words)!r}.{hint}")
    print("\n".join(_table(found, listing.columns)))
    if len(found) == 1 and (text := listing.text(found[0])):
        print(f"\n{text}")
    return 0


def _has_all(row: dict[str, Any], columns: Sequence[str], words: Iterable[str]) -> bool:
    text = " ".join(_cell(row[name]) for name in columns).lower()
    return all(word.lower() in text for word in words)


def _table(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> list[str]:
    lines = [[name.upper() for name in columns]]
    lines += [[_cell(row[name]) or _NOTHING for name in columns] for row in rows]
    return aligned(lines)


def _cell(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)


# Confs

_BOUND = {
    "environment": re.compile(
        r"^[ ]*(?:create_environment\.)?(?:env_name = \"(.+?)\"|env_ctor = @([\w.]+))",
        re.MULTILINE,
    ),
    "algorithm": re.compile(
        r"^[ ]*(?:TrainerConfig\.)?algorithm_ctor = @([\w.]+)", re.MULTILINE
    ),
}


_EACH_SEED = "mean return of each seed"  # a column of confs/README.md


def confs() -> list[dict[str, Any]]:
    """What every conf trains, what it needs, and what it reaches."""
    from alf_lite.config.names import conf_directories, find_conf, packaged_confs

    scores: dict[str, dict[str, str]] = {}
    for folder in conf_directories():
        if (folder / "README.md").is_file():
            scores |= _scores((folder / "README.md").read_text(encoding="utf-8"))
    return [
        {"name": name, **_conf(find_conf(name)), **_score(scores.get(name, {}))}
        for name in packaged_confs()
    ]


def _conf(path: Path) -> dict[str, Any]:
    texts = _with_included(path)
    header = "\n".join(
        line.removeprefix("#").strip()
        for line in texts[0].partition("\n\n")[0].splitlines()
    )
    extras = re.findall(r"pip install 'alf_lite\[(\w+)\]'", header)
    own_data = re.search(r"^DATA = %gin.REQUIRED", texts[0], re.MULTILINE)
    return {
        "environment": _bound(texts, "environment"),
        "algorithm": _bound(texts, "algorithm"),
        "extra": extras[0] if extras else "",
        "data": "yes" if own_data else "",
        "description": re.split(r"(?<=\.)\s", header.replace("\n", " "), maxsplit=1)[0],
        "header": header,
        "file": str(path),
    }


def _with_included(path: Path) -> list[str]:
    """The text of a conf and of those that it includes, which it overrides."""
    text = path.read_text(encoding="utf-8")
    names = re.findall(r'^include "(.+)"', text, re.MULTILINE)
    included = [t for name in names for t in _with_included(path.parent / name)]
    return [text, *included]


def _bound(texts: Sequence[str], what: str) -> str:
    for text in texts:
        if found := _BOUND[what].search(text):
            return next(filter(None, found.groups()))
    return ""


def _scores(document: str) -> dict[str, dict[str, str]]:
    """Conf → heading of the column → cell; of the tables that say the scores."""
    scores = {}
    for table in re.findall(r"(?:^\|.*\n)+", document, re.MULTILINE):
        heads, *rows = _rows(table)
        for cells in rows if _EACH_SEED in heads else ():
            if re.fullmatch(r"`\w+`", cells[0]):
                scores[cells[0].strip("`")] = dict(zip(heads, cells, strict=False))
    return scores


def _score(cells: dict[str, str]) -> dict[str, Any]:
    """The mean over the seeds, and what the table says besides."""
    each = cells.get(_EACH_SEED, "")
    # Without intervals; a text may come instead of numbers.
    numbers = re.findall(r"-?\d+(?:\.\d+)?", re.sub(r"\[.*?\]", "", each))
    means = [float(number) for number in numbers]
    return {
        "steps": cells.get("environment steps", ""),
        "goal": cells.get("goal", ""),
        "score": f"{sum(means) / len(means):.4g}" if means else "",
        "seeds": cells.get("seeds", ""),
        "time": cells.get("wall time of one", ""),
        "scores": each,
    }


def _rows(document: str) -> list[list[str]]:
    """The cells of all tables."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in document.splitlines()
        if line.startswith("|") and not line.startswith("|-")
    ]


def _conf_text(row: dict[str, Any]) -> str:
    return f"{row['file']}\n\n{row['header']}"


# Algorithms


def algorithms() -> list[dict[str, Any]]:
    """The algorithms of the library, and what the README says of them."""
    from alf_lite.config.names import shipped

    described: dict[str, tuple[str, str]] = {}
    for cells in _rows(_readme()):
        for name in re.findall(r"`(\w+Algorithm)`", cells[0]):
            described[name] = (cells[1], cells[2])
    by_algorithm: dict[str, list[str]] = {}
    for conf in confs():
        by_algorithm.setdefault(conf["algorithm"], []).append(conf["name"])
    rows = []
    for name, module in sorted(shipped().items()):
        # Not what they are derived from: OffPolicyAlgorithm, ….
        if name not in described:
            continue
        kind, papers = described[name]
        rows.append(
            {
                "name": name,
                "type": kind,
                "paper": re.sub(r"\[(.+?)\]\(.+?\)", r"\1", papers),
                "confs": by_algorithm.get(name, []),
                "links": re.findall(r"\((http.+?)\)", papers),
                "module": module,
            }
        )
    return rows


def _readme() -> str:
    """The README of the project; installed, it is what pip knows of the package."""
    path = Path(__file__).parents[2] / "README.md"
    if path.is_file() and (path.parent / "setup.py").is_file():
        return path.read_text(encoding="utf-8")
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        return str(metadata("alf_lite").json.get("description", ""))
    except PackageNotFoundError:
        return ""


def _algorithm_text(row: dict[str, Any]) -> str:
    return "\n".join([*row["links"], f"in {row['module']}"])


# Environments


def environments() -> list[dict[str, Any]]:
    """What is registered with gymnasium in a program that imports nothing else."""
    from gymnasium.envs.registration import registry

    return [
        {
            "name": spec.id,
            "max_steps": spec.max_episode_steps or "",
            "native": "yes" if spec.vector_entry_point is not None else "",
            "module": str(spec.entry_point).partition(":")[0],
        }
        for _, spec in sorted(registry.items())
    ]


LISTINGS = {
    "confs": Listing(
        confs,
        (
            *("name", "environment", "algorithm", "extra", "data"),
            *("steps", "score", "seeds", "time"),
        ),
        _conf_text,
    ),
    "algorithms": Listing(
        algorithms, ("name", "type", "paper", "confs"), _algorithm_text
    ),
    "environments": Listing(
        environments, ("name", "max_steps", "native", "module"), lambda row: ""
    ),
}
