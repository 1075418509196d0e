"""Charts of what was measured, as SVG that needs nothing else."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_WIDTH, _HEIGHT = 600, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 160, 28, 45
_COLOURS: Final = ("#1b6ca8", "#c8553d", "#588b3f", "#7a4f9a", "#8a6d1f", "#4a5568")
#: of bars: the height of one, the space for names, values and what is below, and the colour of what is compared with
_BAR, _NAMES, _VALUES, _MARGIN = 26, 250, 80, 10
_PALE: Final = "#b8c4cf"
#: how many marks an axis has at most
_MARKS: Final = 12
#: pixels between two names of lines
_LINE_HEIGHT: Final = 14
#: it is legible on a light and on a dark page
_STYLE: Final = "svg{background:#fff}text{font:12px system-ui,-apple-system,sans-serif;fill:#333}"


@dataclass(frozen=True, slots=True)
class ChartLine:
    """What was measured of one thing, by x."""

    name: str
    points: Sequence[tuple[float, float]]
    #: drawn dashed, for what is compared with
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over one another. Logarithmic axes go from one power of ten to another, so that what is flat looks flat."""

    title: str
    x: str
    y: str
    lines: Sequence[ChartLine]
    log_x: bool = False
    log_y: bool = False

    def svg(self) -> str:
        """Return the chart as the text of an SVG file."""
        xs = sorted({x for line in self.lines for x, _ in line.points})
        ys = [y for line in self.lines for _, y in line.points]
        across = _Axis(xs[0], xs[-1], _LEFT, _WIDTH - _RIGHT, logarithmic=self.log_x)
        up = _Axis.around(ys, _HEIGHT - _BOTTOM, _TOP, logarithmic=self.log_y)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
            f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style>",
            _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, self.x, "middle"),
            _text(8, 16, self.y, "start"),
        ]
        for mark in up.marks():
            y = up.at(mark)
            parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            parts.append(_text(_LEFT - 8, y + 4, f"{mark:,g}", "end"))
        shown = xs if len(xs) <= _MARKS else across.marks()
        parts += [_text(across.at(x), _HEIGHT - _BOTTOM + 16, f"{x:,g}", "middle") for x in shown]
        for place, line in enumerate(self.lines):
            parts += _drawn(line, _COLOURS[place % len(_COLOURS)], across, up)
        parts += self._names(up)
        return "".join(parts) + "</svg>\n"

    def _names(self, up: "_Axis") -> list[str]:
        """Return the names of the lines beside their ends, apart from each other."""
        ends = sorted((up.at(line.points[-1][1]), place, line.name) for place, line in enumerate(self.lines))
        found, last = [], -math.inf
        for y, place, name in ends:
            last = max(y, last + _LINE_HEIGHT)
            found.append(_text(_WIDTH - _RIGHT + 8, last + 4, name, "start", _COLOURS[place % len(_COLOURS)]))
        return found


@dataclass(frozen=True, slots=True)
class BarChart:
    """Bars below one another, each with its value. Those that are compared with are paler."""

    title: str
    unit: str
    #: names with values, and whether the value is what is compared with
    bars: Sequence[tuple[str, float, bool]]

    def svg(self) -> str:
        """Return the chart as the text of an SVG file."""
        height = _TOP + _BAR * len(self.bars) + _MARGIN
        most = max(value for _, value, _ in self.bars)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
            f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style>",
            _text(8, 16, self.unit, "start"),
        ]
        for place, (name, value, compared) in enumerate(self.bars):
            y, wide = _TOP + _BAR * place, value / most * (_WIDTH - _NAMES - _VALUES)
            colour = _PALE if compared else _COLOURS[0]
            parts.append(_text(_NAMES - 8, y + _BAR * 0.6, name, "end"))
            parts.append(f'<rect x="{_NAMES}" y="{y}" width="{wide:.1f}" height="{_BAR - 6}" fill="{colour}"/>')
            parts.append(_text(_NAMES + wide + 6, y + _BAR * 0.6, f"{value:,.4g}", "start"))
        return "".join(parts) + "</svg>\n"


def write_page(path: Path, title: str, charts: Iterable[LineChart]) -> None:
    """Write charts into one HTML file."""
    parts = (f"<h2>{html.escape(chart.title)}</h2>{chart.svg()}" for chart in charts)
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        "<style>body{font:15px system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem}</style>"
        f"<h1>{html.escape(title)}</h1>{''.join(parts)}</html>\n",
        encoding="utf-8",
    )


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float, *, logarithmic: bool) -> "_Axis":
        """Return an axis from zero or a power of ten to above the highest value."""
        if not logarithmic:
            return cls(min(0.0, *values), max(values) * 1.05 or 1.0, start, end, logarithmic=False)
        low = 10.0 ** math.floor(math.log10(min(values)))
        return cls(low, max(10 * low, 10.0 ** math.ceil(math.log10(max(values)))), start, end, logarithmic=True)

    def at(self, value: float) -> float:
        if self.low == self.high:
            return self.start
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def marks(self) -> list[float]:
        """Return round numbers along the axis."""
        if self.logarithmic:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            return [10.0**power for power in powers]
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        first = math.ceil(self.low / step)
        return [round(number * step, 10) for number in range(first, math.floor(self.high / step) + 1)]


def _drawn(line: ChartLine, colour: str, across: _Axis, up: _Axis) -> list[str]:
    at = [(f"{across.at(x):.1f}", f"{up.at(y):.1f}") for x, y in line.points]
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    path = " ".join(f"{x},{y}" for x, y in at)
    return [
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>',
        *(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>' for x, y in at if not line.dashed),
    ]


def _text(x: float, y: float, text: str, anchor: str, colour: str = "") -> str:
    fill = f' style="fill:{colour}"' if colour else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{fill}>{html.escape(text)}</text>'
