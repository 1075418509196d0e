"""Charts of what was measured, as a page of SVG that needs nothing else."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 130, 20, 45
COLOURS = ("#1b6ca8", "#c8553d", "#588b3f", "#7a4f9a")
STYLE = "body{font:15px system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem}svg text{font-size:12px}"


@dataclass(frozen=True, slots=True)
class Line:
    """What was measured of one thing, by x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one another; both axes are logarithmic."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]


def write_page(path: Path, title: str, charts: Iterable[Chart]) -> None:
    """Write charts into a file."""
    parts = (f"<h2>{html.escape(chart.title)}</h2>{_svg(chart)}" for chart in charts)
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style><h1>{html.escape(title)}</h1>{''.join(parts)}</html>\n"
    )


def _svg(chart: Chart) -> str:
    xs = [x for line in chart.lines for x, _ in line.points]
    ys = [y for line in chart.lines for _, y in line.points]
    # From one power of ten to another, so that what is flat looks flat.
    low = 10.0 ** math.floor(math.log10(min(ys)))
    high = max(10 * low, 10.0 ** math.ceil(math.log10(max(ys))))
    x_axis, y_axis = _Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT), _Axis(low, high, HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{html.escape(chart.title)}</title>",
        _text(LEFT, HEIGHT - 8, chart.x, "start"),
        _text(LEFT - 60, TOP - 6, chart.y, "start"),
    ]
    parts += [_text(x_axis.at(x), HEIGHT - BOTTOM + 16, f"{x:,.0f}", "middle") for x in sorted(set(xs))]
    for tick in y_axis.tens():
        y = y_axis.at(tick)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{tick:,g}", "end"))
    for line, colour in zip(chart.lines, COLOURS, strict=False):
        path = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x_axis.at(x):.1f}" cy="{y_axis.at(y):.1f}" r="3" fill="{colour}"/>' for x, y in line.points
        ]
        parts.append(_text(WIDTH - RIGHT + 8, y_axis.at(line.points[-1][1]) + 4, line.name, "start", colour))
    return "".join(parts) + "</svg>"


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        if self.low == self.high:
            return self.start
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def tens(self) -> list[float]:
        powers = range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)
        return [10.0**power for power in powers]


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{html.escape(text)}</text>'
