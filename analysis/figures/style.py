"""How figures look, and how they are saved so that the same records give the same bytes.

Colours are seaborn's palette for colour-blind readers, less its pale ones; whatever colour tells, a marker, a line
style, a hatch or a word tells as well. Sizes are those of a page: 7 inches wide, no letter smaller than 6.5 points.
"""

from __future__ import annotations

import contextlib
import io
import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from envs.cache import cache_root
from harness.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.0  # inches: two columns of a page
DPI = 200
SMALL, MIDDLE, LARGE = 6.5, 7.5, 9.0  # points
LETTERS_PER_INCH = 20.5  # of the footer's font, on average
INK, SOFT, FAINT = "#262626", "#6b6b6b", "#d0d0d0"
SMALL_DOTS: dict[str, Any] = {  # seeds beside a mean
    **{"linestyle": "", "marker": "o", "markersize": 2.8, "markerfacecolor": "white"},
    "color": SOFT,
}
# Fixed metadata: no dates, no versions of programs.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
ENDINGS = tuple(METADATA)


class Drawn(NamedTuple):
    """A figure, or why there is none."""

    name: str
    figure: Figure | None
    reason: str = ""


@dataclass(frozen=True)
class Look:
    """color; marker; dashes: on and off lengths, empty for a solid line."""

    color: str
    marker: str
    dashes: tuple[float, ...]

    @property
    def line(self) -> dict[str, Any]:
        """Keywords of Axes.plot."""
        style: Any = (0, self.dashes) if self.dashes else "-"
        return {"color": self.color, "linestyle": style, "marker": self.marker}


def looks() -> tuple[Look, ...]:
    """Distinct looks; the first is that of the reference row."""
    import seaborn

    blue, orange, green, red, purple = seaborn.color_palette("colorblind").as_hex()[:5]
    return (
        Look(INK, "s", (4, 1.5)),
        Look(blue, "o", ()),
        Look(red, "^", (6, 1.2, 1.2, 1.2)),
        Look(green, "D", (1.4, 1.2)),
        Look(purple, "v", (8, 2)),
        Look(orange, "P", (3, 1.2, 1, 1.2, 1, 1.2)),
    )


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Settings of all figures, whatever the user's own are; they are put back at the end."""
    # Its list of fonts would else lie in the user's home, where nothing of ours is written.
    os.environ.setdefault("MPLCONFIGDIR", str(cache_root().absolute() / "matplotlib"))
    import matplotlib
    import seaborn

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(seaborn.axes_style("ticks"))
        matplotlib.rcParams.update(
            {
                "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
                "font.size": MIDDLE,
                "axes.titlesize": MIDDLE + 0.5,
                "axes.labelsize": MIDDLE,
                "xtick.labelsize": SMALL + 0.5,
                "ytick.labelsize": SMALL + 0.5,
                "legend.fontsize": SMALL + 0.5,
                "figure.titlesize": LARGE,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.linewidth": 0.7,
                "axes.titlelocation": "left",
                "axes.unicode_minus": True,
                "xtick.major.width": 0.7,
                "ytick.major.width": 0.7,
                "xtick.major.size": 3,
                "ytick.major.size": 3,
                "lines.linewidth": 1.3,
                "lines.markersize": 3.6,
                "legend.frameon": False,
                "legend.handlelength": 3.4,
                "hatch.linewidth": 0.6,
                "pdf.fonttype": 42,  # text stays text
                "pdf.compression": 6,
                "path.simplify": False,
                "text.parse_math": False,  # a price in an observation is no formula
            }
        )
        yield


def sheet(height: float, width: float = WIDTH) -> Figure:
    """An empty figure, sizes in inches. It belongs to no window and to no state of pyplot."""
    from matplotlib.figure import Figure as New

    return New(figsize=(width, height), layout="constrained")


def finish(
    figure: Figure, title: str, notes: Sequence[str], name: str, handles: Sequence[Any] = (), columns: int = 5
) -> Drawn:
    """Title above, its further lines smaller, then the legend; notes below in small letters, one paragraph each.

    All of it stands outside of the page's area: saving with a tight box makes room for it, whatever its length.
    """
    inch = 1 / figure.get_figheight()
    letters = int(figure.get_figwidth() * LETTERS_PER_INCH)
    head, _, rest = title.partition("\n")
    below = textwrap.wrap(rest, int(letters * SMALL / MIDDLE))
    top = 1 + (0.08 + 0.165 * -(-len(handles) // columns)) * inch
    if handles:
        # Anchored by the figure's transform, not by its box: saving with a tight box moves that one.
        place: dict[str, Any] = {"bbox_to_anchor": (0.0, 1.0), "bbox_transform": figure.transFigure}
        figure.legend(handles=handles, loc="lower left", ncols=min(columns, len(handles)), borderaxespad=0, **place)
    figure.text(0.01, top + (0.05 + 0.14 * len(below)) * inch, head, va="bottom", fontsize=LARGE, weight="bold")
    figure.text(0.01, top, "\n".join(below), va="bottom", fontsize=MIDDLE, color="#404040")
    paragraphs = ["\n".join(textwrap.wrap(note, letters)) for note in notes if note]
    figure.text(0.01, -0.06 * inch, "\n".join(paragraphs), va="top", fontsize=SMALL, color="#404040", linespacing=1.3)
    return Drawn(name, figure)


def save(figure: Figure, folder: Path, name: str) -> tuple[Path, ...]:
    """The figure in every format. Raises harness.files.RecordError."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # everything has its place now: once for all formats
    paths = []
    for ending in ENDINGS:
        content = io.BytesIO()
        figure.savefig(content, format=ending, dpi=DPI, bbox_inches="tight", pad_inches=0.08, metadata=METADATA[ending])
        path = folder / f"{name}.{ending}"
        atomic_write(path, content.getvalue())
        paths.append(path)
    return tuple(paths)


def grid(axes: Axes, axis: Literal["x", "y", "both"] = "y") -> None:
    """Thin lines behind the data."""
    axes.grid(True, axis=axis, color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)


def per_cent(axes: Axes, axis: str = "y") -> None:
    """Ticks of shares as whole per cent. axis: x, y or both."""
    from matplotlib.ticker import FuncFormatter

    for name, each in (("x", axes.xaxis), ("y", axes.yaxis)):
        if axis in (name, "both"):
            each.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f}".replace("-", "−")))


def spread(count: int, width: float) -> list[float]:
    """`count` offsets evenly within ±width: points of seeds beside each other, never at random."""
    return [0.0] if count == 1 else [width * (2 * i / (count - 1) - 1) for i in range(count)]


def slug(*parts: object) -> str:
    """`overall-alfworld-tiny_s`: a file name of plain letters."""
    return "-".join("".join(c if c.isalnum() or c in "._-" else "_" for c in str(part)) for part in parts if part != "")
