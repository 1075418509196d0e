"""Pages: one HTML file each, with no script and no network, and the same bytes for the same facts.

Plots are plain SVG, and beside each stands a table that says the same. Everything that comes from events, logs, rules
and names is hostile: it is escaped, what does not print is replaced, and the page forbids itself to load anything.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from math import ceil
from typing import Final, TypeAlias

from penstock.errors import MalformedError, printable
from penstock.model.instants import in_utc
from penstock.model.principals import Petnames, Principal

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE: Final = """
:root{--ink:#1a2230;--soft:#5a6577;--line:#d9dee6;--paper:#fff;--card:#f5f7fa;--a:#1d5fbf;--b:#b4480f;--c:#6b7280}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa5b5;--line:#343d4b;--paper:#12161d;--card:#1b212b;
--a:#6ea8ff;--b:#f0914f;--c:#9aa3b0}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:68rem;margin:0 auto;padding:2rem 1.25rem 4rem}h1{font-size:1.7rem;margin:0 0 .25rem}
h2{font-size:1.15rem;margin:2.5rem 0 .25rem;padding-top:1rem;border-top:1px solid var(--line)}
p{margin:.25rem 0;max-width:46rem}.soft{color:var(--soft)}
dl{display:flex;flex-wrap:wrap;gap:.75rem;margin:1.25rem 0}
dl div{background:var(--card);border-radius:.5rem;padding:.6rem 1rem;min-width:8.5rem}
dt{color:var(--soft);font-size:.8rem}dd{margin:0;font-size:1.35rem;font-variant-numeric:tabular-nums}
figure{margin:1rem 0;overflow-x:auto}svg{display:block;width:100%;height:auto;min-width:38rem;max-width:56rem}
svg text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--ink)}
svg .soft{fill:var(--soft)}
.on{paint-order:stroke;stroke:var(--paper);stroke-width:3px}
.flow{fill:none;stroke:var(--a);opacity:.45}.box{fill:var(--card);stroke:var(--line)}
.a{fill:var(--a)}.b{fill:var(--b)}.c{fill:var(--c)}.axis{stroke:var(--line)}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.88rem}
caption{text-align:left;color:var(--soft);padding:.25rem 0;white-space:nowrap}
summary{cursor:pointer;color:var(--soft)}figcaption{margin:.4rem 0}
th,td{text-align:left;padding:.35rem 1.4rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600}th,.t{white-space:nowrap}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.id{display:inline-block;max-width:20ch;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;vertical-align:bottom}
.key{display:inline-block;width:.8em;height:.8em;border-radius:.15em;margin:0 .35em 0 1em}
.key:first-child{margin-left:0}
.key.a{background:var(--a)}.key.b{background:var(--b)}.key.c{background:var(--c)}
footer{margin-top:3rem;color:var(--soft);font-size:.8rem;overflow-wrap:anywhere}
@media print{h2{break-after:avoid}figure,tr{break-inside:avoid}main{max-width:none;padding:0}
figure,.scroll{overflow:visible}svg{min-width:0}table{font-size:.72rem}th,td{padding-right:.7rem}}
"""
_WIDTH: Final = 860
_LABEL: Final = 310
_ROW: Final = 24
_BARS: Final = 20
_OPEN: Final = 24
_STAMP: Final = 120

Cell: TypeAlias = object
#: columns with principals, or texts that begin with one
_PRINCIPALS: Final = frozenset({"principal", "owner", "resource", "issuer", "subject", "source"})
_HEADINGS: Final[Mapping[str, str]] = {
    "took": "took (µs)",
    "p50": "median (µs)",
    "p90": "90 % (µs)",
    "p95": "95 % (µs)",
    "p99": "99 % (µs)",
    "longest": "longest (µs)",
    "origin": "from",
    "target": "to",
    "start": "from (UTC)",
    "time": "time (UTC)",
    "first": "first (UTC)",
    "last": "last (UTC)",
}


@dataclass(frozen=True, slots=True)
class PrincipalNames:
    """How principals are shown: by petname if the reader has one."""

    names: Petnames | None

    def principal(self, text: str) -> str:
        """Show a principal, or a text that begins with one: a resource, or a name in its name space."""
        head = re.split("[/ ]", text, maxsplit=1)[0]
        try:
            return (self.names or Petnames()).show(Principal.parse(head)) + text[len(head) :]
        except MalformedError:
            return text

    def cell(self, column: str, value: object) -> Cell:
        """Return a value as a cell of a table."""
        if value is None:
            return "unknown"
        if isinstance(value, str) and column in _PRINCIPALS:
            return self.principal(value)
        return value


def number(value: object) -> int:
    """Return a count, or 0 for any other value."""
    return value if isinstance(value, int) else 0


def number_text(value: float) -> str:
    """Return a number for people: with separators, and with one decimal if it is not whole.

    >>> number_text(12_345), number_text(2621.600000000001), number_text(3000.0)
    ('12,345', '2,621.6', '3,000')
    """
    return f"{value:,.1f}".removesuffix(".0")


def moment(value: object) -> str:
    """Write an instant, to the minute."""
    return f"{in_utc(value):%Y-%m-%d %H:%M}" if isinstance(value, datetime) else str(value)


def made(at: datetime | None) -> str:
    """Return when a page was made, if that is known."""
    return "" if at is None else f"Made {moment(at)} UTC. "


def _text(value: object) -> str:
    return escape(printable(str(value)))


def page(title: str, lead: str, facts: Mapping[str, int], parts: Iterable[str], footer: str) -> str:
    """Return a page: its title, its subject, a few numbers, and its sections."""
    cards = "".join(f"<div><dt>{_text(name)}</dt><dd>{value:,}</dd></div>" for name, value in facts.items())
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{_text(title)}</h1>\n<p class="soft">{_text(lead)}</p>\n<dl>{cards}</dl>\n'
        f"{''.join(parts)}<footer>{_text(footer)}</footer>\n</main>\n</body>\n</html>\n"
    )


def section(title: str, text: str, figure: str = "", table: str = "") -> str:
    """Return a section: a text, a figure, and the same data as a table."""
    drawn = f"<figure>{figure}</figure>\n" if figure else ""
    return f'<section>\n<h2>{_text(title)}</h2>\n<p class="soft">{_text(text)}</p>\n{drawn}{table}\n</section>\n'


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table, collapsed if it is long."""
    rows = list(rows)
    numeric = [all(isinstance(row[at], int | float) for row in rows) for at in range(len(columns))]

    def cell(value: Cell, name: str) -> str:
        if isinstance(value, int | float):
            return f'<td class="n">{number_text(value)}</td>'
        if isinstance(value, datetime):
            return f'<td class="t">{moment(value)}</td>'
        clipped = ' class="id"' if name in ("credential", "id") else ""
        return f"<td><bdi{clipped}>{_text(value)}</bdi></td>"

    head = "".join(
        f'<th scope="col"{" class=n" if number else ""}>{_text(_HEADINGS.get(name, name))}</th>'
        for name, number in zip(columns, numeric, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(cell(value, name) for value, name in zip(row, columns, strict=True))}</tr>\n" for row in rows
    )
    table = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(caption)}"><table>\n'
        f"<caption>{_text(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )
    return f"<details><summary>{len(rows):,} rows</summary>{table}</details>" if len(rows) > _OPEN else table


def legend(*entries: tuple[str, str]) -> str:
    """Return the legend of the colours."""
    keys = "".join(f'<span class="key {style}"></span>{_text(name)}' for style, name in entries)
    return f"<figcaption>{keys}</figcaption>"


def _svg(key: str, title: str, height: int, body: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" aria-labelledby="{key}">'
        f'<title id="{key}">{_text(title)}. The table below has the same numbers.</title>{"".join(body)}</svg>'
    )


def _label(text: str, y: int) -> str:
    # The difference between labels can be at either end.
    short = text if len(text) <= 44 else f"{text[:21]}…{text[-22:]}"
    return f'<text x="{_LABEL - 10}" y="{y + 15}" text-anchor="end">{_text(short)}<title>{_text(text)}</title></text>'


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" class="{style}"/>'


def _rest(total: int) -> str:
    return f'<text class="soft" x="0" y="{_BARS * _ROW + 15}">and {total - _BARS:,} more, in the table</text>'


def bars(key: str, title: str, items: Sequence[tuple[str, int]], style: str) -> str:
    """Draw horizontal bars, in the order that they come in."""
    if not items:
        return ""
    drawn = items[:_BARS]
    scale = (_WIDTH - _LABEL - 80) / max(1, *(value for _, value in drawn))
    body: list[str] = []
    for place, (label, value) in enumerate(drawn):
        y, width = place * _ROW, value * scale
        body += [_label(label, y), _rect(_LABEL, y + 4, max(width, 1), _ROW - 8, style)]
        body.append(f'<text x="{_LABEL + width + 6:.1f}" y="{y + 16}">{value:,}</text>')
    if len(items) > _BARS:
        body.append(_rest(len(items)))
    return _svg(key, title, _ROW * (len(drawn) + (len(items) > _BARS)), body)


def diverging(key: str, title: str, items: Sequence[tuple[str, int, int]]) -> str:
    """Draw losses to the left of a line and gains to its right; a side that is empty takes no room."""
    drawn = items[:_BARS]
    lost, gained = max(value for _, value, _ in drawn), max(value for _, _, value in drawn)
    left, right = (70 if lost else 0), 80
    scale = (_WIDTH - _LABEL - left - right) / max(1, lost + gained)
    axis = _LABEL + left + lost * scale
    body: list[str] = []
    for place, (label, down, up) in enumerate(drawn):
        y = place * _ROW
        body.append(_label(label, y))
        if down:
            body.append(_rect(axis - down * scale, y + 4, down * scale, _ROW - 8, "b"))
            body.append(f'<text x="{axis - down * scale - 6:.1f}" y="{y + 16}" text-anchor="end">−{down:,}</text>')
        if up:
            body.append(_rect(axis, y + 4, up * scale, _ROW - 8, "a"))
            body.append(f'<text x="{axis + up * scale + 6:.1f}" y="{y + 16}">+{up:,}</text>')
    body.append(f'<line class="axis" x1="{axis:.1f}" x2="{axis:.1f}" y1="0" y2="{_ROW * len(drawn)}"/>')
    if len(items) > _BARS:
        body.append(_rest(len(items)))
    return _svg(key, title, _ROW * (len(drawn) + (len(items) > _BARS)), body)


def flows(key: str, title: str, items: Sequence[tuple[str, str, str, int]]) -> str:
    """Draw a band for each flow: senders on the left, receivers on the right."""
    if not items:
        return ""
    drawn, row, box = items[:_BARS], 40, 230
    most = max(1, *(amount for *_, amount in drawn))
    # The bands of one box begin, or end, one below the other.
    starts = _places([sender for sender, *_ in drawn], row)
    ends = _places([receiver for _, receiver, *_ in drawn], row)
    body: list[str] = []
    for (sender, receiver, what, amount), begin, end in zip(drawn, starts, ends, strict=True):
        middle, width = _WIDTH // 2, max(1.5, 16 * (amount / most) ** 0.5)
        curve = f"M{box} {begin}C{middle} {begin} {middle} {end} {_WIDTH - box} {end}"
        told = _text(f"{sender} → {receiver}: {what}, {amount:,}")
        body.append(f'<path class="flow" stroke-width="{width:.1f}" d="{curve}"><title>{told}</title></path>')
        body.append(f'<text class="on" x="{box + 12}" y="{begin + 4}">{_text(what)}, {amount:,}</text>')
    body += _boxes([sender for sender, *_ in drawn], starts, 0, box)
    body += _boxes([receiver for _, receiver, *_ in drawn], ends, _WIDTH - box, box)
    height = row * len(drawn)
    if len(items) > _BARS:
        body.append(f'<text class="soft" x="0" y="{height + 16}">and {len(items) - _BARS:,} more, in the table</text>')
    return _svg(key, title, height + 24 * (len(items) > _BARS), body)


def _places(names: Sequence[str], row: int) -> list[int]:
    """Return how far down each flow begins or ends: flows of one name together, names in their order."""
    first = {name: names.index(name) for name in names}
    order = sorted(range(len(names)), key=lambda at: (first[names[at]], at))
    return [order.index(at) * row + row // 2 for at in range(len(names))]


def _boxes(names: Sequence[str], places: Sequence[int], left: int, width: int) -> Iterator[str]:
    for name in dict.fromkeys(names):
        own = [place for place, other in zip(places, names, strict=True) if other == name]
        top, bottom = min(own) - 16, max(own) + 16
        short = name if len(name) <= 30 else f"{name[:14]}…{name[-15:]}"
        yield _rect(left, top, width, bottom - top, "box")
        yield (
            f'<text x="{left + width // 2}" y="{(top + bottom) // 2 + 4}" text-anchor="middle">{_text(short)}'
            f"<title>{_text(name)}</title></text>"
        )


def columns(key: str, title: str, items: Sequence[tuple[datetime, tuple[int, ...]]], period: timedelta) -> str:
    """Draw stacked columns over time; periods in which nothing happened are empty."""
    if not items:
        return ""
    height, left = 180, 60
    top = max(1, *(sum(values) for _, values in items))
    first, last = items[0][0], items[-1][0]
    periods = (last - first) // period + 1
    step = (_WIDTH - left) / max(periods, 12)
    body = [
        f'<line class="axis" x1="{left}" x2="{_WIDTH}" y1="{y}" y2="{y}"/>'
        f'<text class="soft" x="{left - 8}" y="{y + 4}" text-anchor="end">{round(top * share):,}</text>'
        for share, y in ((0, height + 10), (1, 10))
    ]
    for start, values in items:
        x, y = left + (start - first) / period * step, height + 10.0
        for value, style in zip(values, "abc", strict=True):
            tall = value * height / top
            y -= tall
            if value:
                body.append(_rect(x + step * 0.1, y, max(step * 0.8, 1), tall, style))
    for place in range(0, periods, ceil(_STAMP / step)):
        x, label = left + place * step, moment(first + place * period)
        if x + _STAMP <= _WIDTH or not place:
            body.append(f'<text class="soft" x="{x:.1f}" y="{height + 30}">{label}</text>')
    return _svg(key, title, height + 40, body)
