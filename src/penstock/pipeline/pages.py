"""Pages: one HTML file each, with no script and no network, and the same bytes for the same facts.

Text in plots keeps its size on a phone and on paper, and beside each plot is a table with the same numbers. Everything
that comes from events, logs, rules and names is hostile: it is escaped, what does not print is replaced, and the page
forbids itself to load anything.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from math import ceil
from typing import Final, TypeAlias, TypeGuard

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
figure{margin:1rem 0;max-width:56rem;overflow-x:auto}figure,.key{print-color-adjust:exact}
.time{display:block;width:100%;height:auto;min-width:44rem}
.time text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--soft)}
.a{fill:var(--a);stroke:var(--a);background:var(--a)}.b{fill:var(--b);stroke:var(--b);background:var(--b)}
.c{fill:var(--c);stroke:var(--c);background:var(--c)}.time rect{stroke:none}.axis{stroke:var(--line)}
.bars,.flows{font-size:.85rem;line-height:1.25}
.bars div{display:grid;grid-template-columns:36% 1fr;gap:.1rem .75rem;align-items:center;margin:.35rem 0}
.bars bdi{text-align:right;overflow-wrap:anywhere}.bars span{display:flex;align-items:center;gap:.4rem}
.bars i{height:1rem;min-width:1px;border-radius:2px;width:calc((100% - 5rem)*var(--share))}
.flows{display:grid;grid-template-columns:28% 1fr 28%}.flows div{position:relative}
.flows svg{display:block;width:100%}.flows path{fill:none;opacity:.4;vector-effect:non-scaling-stroke}
.flows bdi{position:absolute}.flows svg~bdi{left:.6rem;text-shadow:0 0 3px var(--paper),0 0 3px var(--paper)}
.box{width:100%;display:flex;align-items:center;justify-content:center;text-align:center;overflow:hidden;
padding:0 .4rem;overflow-wrap:anywhere;background:var(--card);border:1px solid var(--line);border-radius:.35rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.88rem}
caption{text-align:left;color:var(--soft);padding:.25rem 0;white-space:nowrap}
summary{cursor:pointer;color:var(--soft)}figcaption{margin:.4rem 0}
th,td{text-align:left;padding:.35rem 1.4rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600}th,.t{white-space:nowrap}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.id{display:inline-block;max-width:20ch;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;vertical-align:bottom}
.key{display:inline-block;width:.8em;height:.8em;border-radius:.15em;margin:0 .35em 0 1em}
.key:first-child{margin-left:0}
footer{margin-top:3rem;color:var(--soft);font-size:.8rem;overflow-wrap:anywhere}
@media(max-width:40rem){main{padding:1.25rem .9rem 3rem}dl{gap:.5rem}dl div{flex:1 1 40%;min-width:0}
.bars div{grid-template-columns:1fr}.bars bdi{text-align:left}.flows{font-size:.75rem;line-height:1.15}
.box{font-size:.7rem;line-height:1.1;padding:0 .2rem}th,td{padding-right:.7rem}.wide thead{display:none}
caption{white-space:normal}.wide,.wide :is(caption,tbody){display:block}
.wide tr{display:block;padding:.4rem 0;border-bottom:1px solid var(--line)}
.wide td{display:grid;grid-template-columns:7rem 1fr;padding:.05rem 0;border:0;text-align:left;overflow-wrap:anywhere}
.wide td::before{content:attr(data-of);color:var(--soft)}}
@media print{h2{break-after:avoid}figure,tr{break-inside:avoid}main{max-width:none;padding:0}
details::details-content{content-visibility:visible}
figure,.scroll{overflow:visible}.time{min-width:0}table{font-size:.72rem}th,td{padding-right:.7rem}}
"""
_WIDTH: Final = 860
_ROW: Final = 48
_DRAWN: Final = 20
_OPEN: Final = 24
_NARROW: Final = 4
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
    "between_types": "between types",
    "same_type": "on one type",
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


def _is_number(value: Cell) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table, collapsed if it is long. On a phone the rows of a wide one are lists."""
    rows = list(rows)
    wide = len(columns) > _NARROW
    numeric = [all(_is_number(row[at]) for row in rows) for at in range(len(columns))]

    def cell(value: Cell, name: str) -> str:
        of = f' data-of="{_text(_HEADINGS.get(name, name))}"' if wide else ""
        if _is_number(value):
            return f'<td class="n"{of}>{number_text(value)}</td>'
        if isinstance(value, datetime):
            return f'<td class="t"{of}>{moment(value)}</td>'
        clipped = ' class="id"' if name in ("credential", "id") else ""
        told = ("no", "yes")[value] if isinstance(value, bool) else value
        return f"<td{of}><bdi{clipped}>{_text(told)}</bdi></td>"

    head = "".join(
        f'<th scope="col"{" class=n" if number else ""}>{_text(_HEADINGS.get(name, name))}</th>'
        for name, number in zip(columns, numeric, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(cell(value, name) for value, name in zip(row, columns, strict=True))}</tr>\n" for row in rows
    )
    table = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{_text(caption)}">'
        f"<table{' class=wide' if wide else ''}>\n"
        f"<caption>{_text(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )
    return f"<details><summary>{len(rows):,} rows</summary>{table}</details>" if len(rows) > _OPEN else table


def legend(*entries: tuple[str, str]) -> str:
    """Return the legend of the colours."""
    keys = "".join(f'<span class="key {style}"></span>{_text(name)}' for style, name in entries)
    return f"<figcaption>{keys}</figcaption>"


def _plot(kind: str, title: str, body: Iterable[str], more: int = 0) -> str:
    rest = f'<p class="soft">and {more:,} more, in the table</p>' if more > 0 else ""
    told = f"{_text(title)}. The table below has the same numbers."
    return f'<div class="{kind}" role="img" aria-label="{told}">{"".join(body)}</div>{rest}'


def _svg(view: str, kind: str, body: Iterable[str]) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {view}" {kind}>{"".join(body)}</svg>'


def _short(text: str, most: int) -> str:
    """Return a label that is not too long; the difference between labels can be at either end."""
    half = most // 2
    return _text(text if len(text) <= most else f"{text[: half - 1]}…{text[-half:]}")


def bars(title: str, items: Sequence[tuple[str, int]], style: str) -> str:
    """Draw horizontal bars, in the order that they come in."""
    if not items:
        return ""
    drawn = items[:_DRAWN]
    most = max(1, *(value for _, value in drawn))
    body = (
        f'<div><bdi title="{_text(label)}">{_short(label, 90)}</bdi>'
        f'<span><i class="{style}" style="--share:{value / most:.4f}"></i>{value:,}</span></div>'
        for label, value in drawn
    )
    return _plot("bars", title, body, len(items) - _DRAWN)


@dataclass(frozen=True, slots=True)
class FlowBand:
    """A flow in a diagram: between which boxes, what is written on it, and how wide it is."""

    sender: str
    receiver: str
    label: str
    amount: int
    style: str = "a"


def flows(title: str, bands: Sequence[FlowBand]) -> str:
    """Draw a band for each flow: senders on the left, receivers on the right."""
    if not bands:
        return ""
    drawn = bands[:_DRAWN]
    most, height = max(1, *(band.amount for band in drawn)), _ROW * len(drawn)
    # The bands of one box begin, or end, one below the other.
    senders, receivers = [band.sender for band in drawn], [band.receiver for band in drawn]
    starts, ends = _places(senders), _places(receivers)
    paths: list[str] = []
    labels: list[str] = []
    for band, begin, end in zip(drawn, starts, ends, strict=True):
        width = max(1.5, 16 * (band.amount / most) ** 0.5)
        told = _text(f"{band.sender} → {band.receiver}: {band.label}")
        curve = f"M0 {begin}C50 {begin} 50 {end} 100 {end}"
        paths.append(f'<path class="{band.style}" stroke-width="{width:.1f}" d="{curve}"><title>{told}</title></path>')
        labels.append(f'<bdi style="top:{begin - 23}px">{_short(band.label, 40)}</bdi>')
    svg = _svg(f"100 {height}", f'height="{height}" preserveAspectRatio="none"', paths)
    left, right = "".join(_boxes(senders, starts)), "".join(_boxes(receivers, ends))
    body = f"<div>{left}</div><div>{svg}{''.join(labels)}</div><div>{right}</div>"
    return _plot("flows", title, [body], len(bands) - _DRAWN)


def _places(names: Sequence[str]) -> list[int]:
    """Return how far down each flow begins or ends: flows of one name together, names in their order."""
    first = {name: names.index(name) for name in names}
    order = sorted(range(len(names)), key=lambda at: (first[names[at]], at))
    return [order.index(at) * _ROW + _ROW // 2 for at in range(len(names))]


def _boxes(names: Sequence[str], places: Sequence[int]) -> Iterator[str]:
    for name in dict.fromkeys(names):
        own = [place for place, other in zip(places, names, strict=True) if other == name]
        top, bottom = min(own) - 20, max(own) + 20
        place = f"top:{top}px;height:{bottom - top}px"
        yield f'<bdi class="box" style="{place}" title="{_text(name)}">{_short(name, 40)}</bdi>'


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" class="{style}"/>'


def columns(title: str, items: Sequence[tuple[datetime, tuple[int, ...]]], period: timedelta) -> str:
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
        f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{round(top * share):,}</text>'
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
            body.append(f'<text x="{x:.1f}" y="{height + 30}">{label}</text>')
    return _plot("columns", title, [_svg(f"{_WIDTH} {height + 40}", 'class="time"', body)])
