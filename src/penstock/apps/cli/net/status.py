"""The state of a broker in sentences, trees and tables, for `penstock net show`.

Of each owner's policy a broker tells the `number` of the last event, its `state`, the `stamp age` in seconds and who
it is `stamped by`, and how far the last `events` are: how many certificates each `revokes`, since when it is
`complete`, and for each of the `brokers` its `progress`, and in `at` since when it is done or until when to wait at the
latest. Of the other `brokers` that an owner's changes wait for it tells since when they are known (`since`) or `away`,
when their rights end, and whether they use time-stamps. Types that could not be installed are under `not installed`.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from penstock.apps.cli.shared.describe import Facts, listed, table, value_text
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.terminal import Shown, TreeLine, fact_table, grid_table, trees
from penstock.codec.wire import Wire

_SIZES: Final = {
    "sessions": "clients connected",
    "types": "event types known",
    "clients": "subscriptions and advertisements of clients",
    "entered": "the same from neighbouring brokers",
    "subscriptions": "of these, subscriptions",
    "told": "the same passed on to neighbouring brokers",
    "trees": "event types with routes",
    "held back": "events held back until policy is current",
}
_COUNTS: Final = {
    "accepted": "requests accepted",
    "refused": "requests refused",
    "published": "events published",
    "delivered": "events delivered",
    "slowed": "times that a busy client was slowed down",
    "turned away": "connections turned away",
    "statements": "validity statements received",
    "missing": "messages missing in the fabric",
    "not carried": "events not carried",
    "lost": "events lost in the fabric",
    "unconfirmed": "requests not confirmed by all brokers",
}
_STAMPS: Final = {"optional": "optional: a broker that is cut off goes on for owners that sign none"}
_FRESH: Final = "fresh"
_DONE: Final = ("acknowledged", "run-out")


def plain(value: Wire) -> object:
    """Return a value from a broker as JSON."""
    match value:
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
        case datetime():
            return value_text(value)
        case bytes():
            return value.hex()
    return value


def show_status(status: Mapping[str, Wire], names: NameBook) -> Iterator[Shown]:
    """Yield the state of a broker for people."""
    me = str(status.get("broker", ""))
    counts = table(status.get("counts"))
    facts: Facts = [("broker", names.show_text(me)), ("network", _network(str(status.get("network", "")), names))]
    if "stamps" in status:
        facts.append(("time-stamps", _STAMPS.get(str(status["stamps"]), str(status["stamps"]))))
    facts += [(words, str(status[key])) for key, words in _SIZES.items() if key in status]
    facts += [(_COUNTS.get(name, name), str(number)) for name, number in counts.items()]
    yield fact_table(facts)
    yield ""
    yield from _show_brokers(me, table(status.get("brokers")), names)
    links = table(status.get("links"))
    if links:
        yield ""
        yield _links(links, names)
    policy = table(status.get("policy"))
    if policy:
        yield ""
        yield from _show_policy(policy, names)


# --- Brokers and links -----------------------------------------------------------------------------------------------


def _show_brokers(me: str, links: Mapping[str, Wire], names: NameBook) -> Iterator[Shown]:
    neighbours = {broker: [str(one) for one in listed(found)] for broker, found in links.items()}
    root, others = _tree(me, neighbours, names)
    yield from trees([root])
    apart = sorted(neighbours.keys() - {me} - others)
    if apart:
        yield f"not reached from here: {', '.join(names.show_text(broker) for broker in apart)}"


def _links(links: Mapping[str, Wire], names: NameBook) -> Shown:
    """Return the links that were lost: whether they are back, the last reason, and the events that were dropped."""
    rows = []
    for broker, found in links.items():
        link = table(found)
        seconds = link.get("seconds")
        since = f"{seconds:.0f} s" if isinstance(seconds, float) else ""
        words = *(str(link.get(word, "")) for word in ("state", "code", "losses", "unsent")), since
        rows.append((names.show_text(broker), *words))
    return grid_table(("link to", "state", "lost by", "losses", "events not passed on", "since"), rows)


def _tree(me: str, neighbours: Mapping[str, list[str]], names: NameBook) -> tuple[TreeLine, set[str]]:
    """Return the brokers as a tree of shortest paths; other links are named at their first broker."""
    root = TreeLine(f"{names.show_text(me)} (this broker)")
    parents = {me: ""}
    pending = deque([(me, root)])
    while pending:
        broker, node = pending.popleft()
        new = [one for one in neighbours.get(broker, []) if one not in parents]
        more = [one for one in neighbours.get(broker, []) if one in parents and one != parents[broker]]
        if more:
            node.text += f", linked to {', '.join(names.show_text(one) for one in more)} too"
        for one in new:
            parents[one] = broker
            child = TreeLine(names.show_text(one))
            node.children.append(child)
            pending.append((one, child))
    return root, set(parents) - {me}


# --- Policy ----------------------------------------------------------------------------------------------------------


def _show_policy(policy: Mapping[str, Wire], names: NameBook) -> Iterator[Shown]:
    rows = [_policy_row(owner, table(state), names) for owner, state in policy.items()]
    yield grid_table(("owner", "policy event", "time-stamp", "state"), rows)
    progress = [row for owner, state in policy.items() for row in _progress(owner, table(state), names)]
    if progress:
        yield ""
        yield progress_table(("owner", "policy event", "revokes", "broker", "progress", "when", "why"), progress)
    for owner, state in policy.items():
        for name, problem in table(table(state).get("not installed")).items():
            what = f"{names.show_text(owner)}/{name}"
            yield f"✗ {what} is not installed here, and nothing is acknowledged: {problem!s}"


def _policy_row(owner: str, state: Mapping[str, Wire], names: NameBook) -> tuple[str, str, str, str]:
    age = state.get("stamp age")
    stamp = f"{age:.0f} s old" if isinstance(age, int | float) else "none"
    word = str(state.get("state", ""))
    shown = "✓ current" if word == _FRESH else f"✗ {word}: nothing is delivered"
    return names.show_text(owner), str(state.get("number", "")), stamp, shown


def _progress(owner: str, state: Mapping[str, Wire], names: NameBook) -> Iterator[tuple[str, ...]]:
    """Yield a row for each policy event, and for each broker that one still waits for; the last event in full."""
    events = [table(event) for event in listed(state.get("events"))]
    for event in events:
        number, revokes, complete = (event.get(key) for key in ("number", "revokes", "complete"))
        done = f"✓ complete since {value_text(complete)}" if isinstance(complete, datetime) else "✗ not complete"
        yield names.show_text(owner), str(number), str(revokes), "all", done, "", ""
        for broker, standing in table(event.get("brokers")).items():
            entry = table(standing)
            progress, at = str(entry.get("progress", "")), entry.get("at")
            if progress not in _DONE or event is events[-1]:
                when = (
                    f"{'since' if progress in _DONE else 'until'} {value_text(at)}" if isinstance(at, datetime) else ""
                )
                why = "" if progress in _DONE else why_waited_for(state, broker)
                yield "", str(number), "", names.show_text(broker), progress, when, why


def progress_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Shown:
    """Return the progress of policy events, without the last column if it is empty."""
    last = len(head) if any(row[-1] for row in rows) else -1
    return grid_table(head[:last], [row[:last] for row in rows])


def why_waited_for(state: Mapping[str, Wire], broker: str) -> str:
    """Return why a broker is waited for, from the status of an owner's policy: its place, and until when it counts."""
    known = table(state.get("brokers"))
    if broker not in known:
        return ""
    entry = table(known[broker])
    away, end = entry.get("away"), entry.get("rights end")
    words = [f"away since {value_text(away)}" if isinstance(away, datetime) else "in the network"]
    if isinstance(end, datetime):
        words.append(f"its rights end {value_text(end)}")
    if entry.get("stamped") is not True:
        words.append("without time-stamps")
    return ", ".join(words)


# --- Words -----------------------------------------------------------------------------------------------------------


def _network(text: str, names: NameBook) -> str:
    owner, slash, name = text.partition("/")
    return f"{names.show_text(owner)}{slash}{name}"
