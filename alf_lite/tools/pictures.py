"""What all pictures have in common: their style, and how they are written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alf_lite.errors import ConfigError, missing_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")

# Okabe and Ito's colours, which the colour-blind tell apart: blue, vermilion, green,
# purple, sky blue, orange, black. With line styles for more curves than that.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_LINE_STYLES = ("-", "--", ":", "-.")
BAND_ALPHA = 0.18

_STYLE: Any = {  # matplotlib knows the names of its settings as a type
    "figure.dpi": 150,
    "figure.facecolor": "white",
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": "#444444",
    "axes.edgecolor": "#888888",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "svg.hashsalt": "alf_lite",  # the same file for the same picture
}


def tables_and_pictures(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Which of the files to write are tables, and which pictures.

    Raises:
        ConfigError: if a picture cannot be written.
    """
    tables = [file for file in files if Path(file).suffix.lower() == ".csv"]
    drawn = [file for file in files if file not in tables]
    for file in drawn:
        check_can_draw(file)
    return tables, drawn


def check_can_draw(file: str | Path) -> None:
    """Raises ConfigError if a picture cannot be written, before anything is done."""
    if Path(file).suffix.lower() not in FORMATS:
        raise ConfigError(
            f"{file}: a picture is a file that ends with {', '.join(FORMATS)}"
        )
    if find_spec("matplotlib") is None:
        raise missing_extra("a picture", "plot")


@contextlib.contextmanager
def picture(
    file: str | Path, num_rows: int, num_columns: int, size: tuple[float, float]
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Gives the block a figure and its axes row by row, and writes it at the end.

    Args:
        file: that is written; its ending says how.
        num_rows: of axes.
        num_columns: of axes.
        size: of one of them, in inches.

    Raises:
        ConfigError: if the plot extra is missing or the file cannot be written.
    """
    check_can_draw(file)
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        total = size[0] * num_columns, size[1] * num_rows
        figure = Figure(figsize=total, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(num_rows, num_columns, squeeze=False)
        yield figure, list(axes.flat)
        try:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file, metadata=_metadata(file))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be written: {error}") from error


def _metadata(file: str | Path) -> dict[str, Any]:
    """Without the date, so that the same picture is the same file."""
    kind = Path(file).suffix.lower()
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(kind, {})


def line_style(index: int) -> dict[str, Any]:
    """Of the curve of a number: colour, and dashes when the colours are used up."""
    style = _LINE_STYLES[index // len(_COLOURS) % len(_LINE_STYLES)]
    return {"color": _COLOURS[index % len(_COLOURS)], "linestyle": style}


def legend(figure: Figure, styles: Mapping[str, Mapping[str, Any]]) -> None:
    """Above the axes, where it covers nothing, in as many columns as have room.

    Args:
        figure: of the legend.
        styles: label -> style of its line.
    """
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **style) for style in styles.values()]
    letters = max(map(len, styles)) + 7
    columns = int(figure.get_figwidth() * 12 / letters)
    columns = max(1, min(len(styles), columns))
    figure.legend(handles, list(styles), loc="outside upper left", ncols=columns)


def short_numbers(axis: Any) -> None:
    """Ticks such as 50k and 2M."""
    from matplotlib.ticker import EngFormatter

    axis.set_major_formatter(EngFormatter(sep=""))
