"""Pictures of outcomes, as SVG and PNG. matplotlib is an extra: `pip install 'weft[sim]'`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

COLOURS = ("#2563eb", "#dc6803", "#0d9488", "#b42fa8", "#64748b", "#ca8a04", "#be123c")
"""Told apart by most people who see few colours, on white."""
STYLES = ("-", "--", "-.", ":", "-", "--", "-.")
ALWAYS = {
    "default": 0,
    "fifo": 1,
    "least-attained": 2,
    "fair": 3,
    "shortest+oracle": 4,
    "fifo-backfill": 5,
    "expected": 6,
}
"""A policy looks the same in every picture."""
INK, FAINT = "#1f2937", "#e5e7eb"
LOOK: dict[Any, Any] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": "#9ca3af",
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.size": 9,
    "legend.frameon": False,
    "svg.hashsalt": "weft",
    "svg.fonttype": "path",
    "path.simplify": True,
    "path.simplify_threshold": 0.5,
}
Curve = tuple[Sequence[float], Sequence[float]]


class NoMatplotlib(RuntimeError):
    """The extra is not installed."""


@contextmanager
def picture(
    path: Path, panels: int = 1, *, rows: int = 1, height: float = 3.4, width: float = 7.2
) -> Iterator[list[Axes]]:
    """Axes side by side, in so many rows of this height; written as `path`.svg and `path`.png when all is drawn. The same data give the same files."""
    try:
        import matplotlib
    except ImportError:
        raise NoMatplotlib("pictures need matplotlib: pip install 'weft[sim]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(LOOK):
        figure, axes = pyplot.subplots(
            rows, panels, figsize=(width, rows * height), squeeze=False, layout="constrained"
        )
        try:
            yield list(axes.flat)
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # everything has its place: it need not be found for each file
            figure.savefig(path.with_name(path.name + ".svg"), metadata={"Date": None, "Creator": "weft sim"})
            figure.savefig(path.with_name(path.name + ".png"), dpi=150, metadata={"Software": "weft sim"})
        finally:
            pyplot.close(figure)


def style(name: str, number: int) -> dict[str, Any]:
    number = ALWAYS.get(name, number)
    over = 4 if name == "default" else 3  # where curves are alike, Weft's own is to be seen
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": STYLES[number % len(STYLES)],
        "zorder": over,
    }


def cdf(axes: Axes, series: Mapping[str, Sequence[float]], *, log: bool = False, least: float = 1.0) -> None:
    """The share of values up to each value."""
    for number, (name, values) in enumerate(series.items()):
        ordered = sorted(max(value, least) if log else value for value in values)
        shares = [(place + 1) / len(ordered) for place in range(len(ordered))]
        xs, ys = thinned(([*ordered[:1], *ordered], [0.0, *shares]))
        axes.step(xs, ys, where="post", label=name, linewidth=1.8, **style(name, number))
    if log:
        axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    percent(axes.yaxis)


def thinned(curve: Curve, points: int = 1500) -> Curve:
    """A curve of as many points as can be told apart."""
    xs, ys = curve
    every = max(1, len(xs) // points)
    if every == 1:
        return xs, ys
    kept = [*range(0, len(xs), every), len(xs) - 1]
    return [xs[i] for i in kept], [ys[i] for i in kept]


def steps(axes: Axes, series: Mapping[str, Curve]) -> None:
    """What holds until it changes."""
    for number, (name, curve) in enumerate(series.items()):
        xs, ys = thinned(curve)
        axes.step(xs, ys, where="post", label=name, linewidth=1.6, **style(name, number))


def stacked(axes: Axes, times: Sequence[float], series: Mapping[str, Sequence[float]]) -> None:
    """What each has of the whole, until it changes."""
    below = [0.0] * len(times)
    for number, (name, values) in enumerate(series.items()):
        above = [low + value for low, value in zip(below, values, strict=True)]
        axes.fill_between(
            times,
            below,
            above,
            step="post",
            label=name,
            linewidth=0,
            alpha=0.85,
            color=style(name, number)["color"],
        )
        below = above


def bars(axes: Axes, groups: Sequence[str], series: Mapping[str, Sequence[float]], *, show: str = "") -> None:
    """For every group a bar of each series; `show`: the format of the number above a bar."""
    wide = 0.8 / max(len(series), 1)
    for number, (name, values) in enumerate(series.items()):
        places = [place + (number - (len(series) - 1) / 2) * wide for place in range(len(groups))]
        drawn = axes.bar(places, values, wide * 0.92, label=name, color=style(name, number)["color"])
        if show:
            axes.bar_label(
                drawn, labels=[format(value, show) for value in values], fontsize=7, padding=1, color=INK
            )
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(axis="x", visible=False)


def percent(axis: Axis) -> None:
    axis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")


def durations(axes: Axes, *, on_x: bool = True) -> None:
    """Ticks of a logarithmic axis of seconds, as people say them."""
    ticks = {1: "1s", 10: "10s", 60: "1m", 600: "10m", 3600: "1h", 86400: "1d", 864000: "10d"}
    axis = axes.xaxis if on_x else axes.yaxis
    low, high = axes.get_xlim() if on_x else axes.get_ylim()
    shown = {at: text for at, text in ticks.items() if low <= at <= high}
    axis.set_ticks(list(shown), list(shown.values()))
    axis.set_minor_locator(_no_ticks())


def legend(axes: Axes, columns: int = 6) -> None:
    """One for the whole picture, below it, where it hides nothing."""
    handles, names = axes.get_legend_handles_labels()
    axes.figure.legend(handles, names, loc="outside lower center", ncols=min(columns, len(names)))


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()
