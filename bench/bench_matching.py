"""Matching: the time per event with 100, 10,000 and 100,000 subscriptions, against each other and a naive scan.

At each size the events have the same number of matches, so that what grows is the cost of those that do not match.
"""

import gc
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness import Result, at_least, at_most, microseconds, observed, seconds
from penstock.broker.limits import BrokerLimits
from penstock.broker.matching.coverage import Coverage, Interest
from penstock.broker.matching.matcher import Matcher
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.model.values import AttributeSpec, Kind, Scalar, Schema
from penstock.selector import Selector, compile_selector, conjunction, equals, parse
from penstock.selector.ast import AttributeReference, Between, Condition, Like, literal, render

SIZES = (100, 10_000, 100_000)
MATCHES = 10
#: A hundred times and a thousand times as many subscriptions may cost so many times as much an event.
BOUND = 3.0
SCHEMA: Schema = {
    "plate": AttributeSpec(Kind.STRING),
    "speed": AttributeSpec(Kind.INTEGER),
    "place": AttributeSpec(Kind.FLOAT),
}

Event = dict[str, Scalar]


@dataclass(frozen=True)
class Load:
    """Subscriptions and events; every event matches `MATCHES` of the subscriptions."""

    selectors: list[Selector]
    events: list[Event]


def run() -> list[Result]:
    results = [growth(name, make) for name, make in LOADS.items()]
    return [*results, against_a_scan(), memory(), churn(), covering()]


# --- loads: the wanted ones match every event, the others none ------------------------------------------------------


def plates(size: int) -> Load:
    """`plate = X AND speed > N`."""
    fast = [parse(f"speed > {10 + number}") for number in range(60)]
    wanted = [conjunction(equals("plate", "MINE"), fast[number]) for number in range(MATCHES)]
    others = [conjunction(equals("plate", f"P{number}"), fast[number % 60]) for number in range(size - MATCHES)]
    return Load(wanted + others, [{"plate": "MINE", "speed": 60 + step, "place": 0.0} for step in range(10)])


def ranges(size: int) -> Load:
    """`place BETWEEN a AND b`: narrow ones all around the events, which fall between them."""
    half = size // 2
    wanted = [_between(-1_000_000.0 - number, 1_000_000.0 + number) for number in range(MATCHES)]
    others = [_between(float(number - half), number - half + 0.4) for number in range(size - MATCHES)]
    return Load(wanted + others, [{"plate": "MINE", "speed": 50, "place": step + 0.7} for step in range(10)])


def prefixes(size: int) -> Load:
    """`plate LIKE 'X%'`, before and after what the events have."""
    wanted = [
        _selector(Like(AttributeReference("plate"), "MINE AND ONLY MINE"[:length] + "%"))
        for length in range(1, MATCHES + 1)
    ]
    others = [
        _selector(Like(AttributeReference("plate"), f"{'LN'[number % 2]}{number}%")) for number in range(size - MATCHES)
    ]
    return Load(wanted + others, [{"plate": f"MINE AND ONLY{step}", "speed": 50, "place": 0.0} for step in range(10)])


def mixed(size: int) -> Load:
    """A third of each, the matches too."""
    parts = [make(size // 3 + (size % 3 if make is plates else 0)) for make in (plates, ranges, prefixes)]
    matching = [part.selectors[:MATCHES] for part in parts]
    shares = (4, 3, 3)
    wanted = [selector for some, share in zip(matching, shares, strict=True) for selector in some[-share:]]
    others = [selector for part in parts for selector in part.selectors[MATCHES:]]
    return Load(wanted + others, [{"plate": "MINE", "speed": 60 + step, "place": step + 0.7} for step in range(10)])


LOADS: dict[str, Callable[[int], Load]] = {"plates": plates, "ranges": ranges, "prefixes": prefixes, "mixed": mixed}


def _between(low: float, high: float) -> Selector:
    return _selector(Between(AttributeReference("place"), literal(low), literal(high)))


def _selector(root: Condition) -> Selector:
    return Selector(render(root), root, frozenset(SCHEMA))


def _matcher(selectors: Sequence[Selector]) -> Matcher[int]:
    matcher = Matcher[int](limits=BrokerLimits())
    for key, selector in enumerate(selectors):
        matcher.add(key, selector)
    return matcher


# --- what is measured ----------------------------------------------------------------------------------------------


def growth(name: str, make: Callable[[int], Load]) -> Result:
    jobs = []
    for size in SIZES:
        load = make(size)
        matcher = _matcher(load.selectors)
        answers = {len(matcher.match(event)) for event in load.events}
        assert len(answers) == 1, answers

        def job(matcher: Matcher[int] = matcher, events: list[Event] = load.events) -> None:
            for event in events:
                matcher.match(event)

        jobs.append(job)
    gc.collect()
    times = [each / 10 for each in seconds(*jobs, repeat=50)]
    detail = ", ".join(f"{size:,}: {microseconds(time)}" for size, time in zip(SIZES, times, strict=True))
    return at_most(f"matching-{name}-100-to-100000", times[-1] / times[0], BOUND, f"{detail} an event")


def against_a_scan() -> Result:
    """Compare with evaluating all subscriptions, compiled; 2,000 of them, since more take long to compile."""
    load = plates(2_000)
    matcher = _matcher(load.selectors)
    compiled = [compile_selector(selector) for selector in load.selectors]
    event = load.events[0]

    def scan() -> int:
        return sum(each(event) is True for each in compiled)

    assert len(matcher.match(event)) == scan()
    slow, fast = seconds(scan, lambda: matcher.match(event), repeat=20)
    detail = f"2,000 subscriptions: {microseconds(fast)}, one by one {microseconds(slow)}"
    return at_least("matching-against-scan", slow / fast, 10, detail)


def memory() -> Result:
    sizes = []
    for make in (plates, ranges):
        selectors = make(10_000).selectors
        gc.collect()
        tracemalloc.start()
        matcher = _matcher(selectors)
        sizes.append(tracemalloc.get_traced_memory()[0] / len(matcher))
        tracemalloc.stop()
    detail = f"{sizes[0]:.0f} bytes a subscription `plate = X AND speed > N`, {sizes[1]:.0f} `place BETWEEN a AND b`"
    return observed("matching-memory", sizes[0] / 1024, f"KiB; {detail}, its selector not counted")


def churn() -> Result:
    """Add and remove one subscription among few and among many; nobody else has its selector."""
    fresh = [conjunction(equals("plate", f"NEW{number}"), parse("speed > 7")) for number in range(20)]
    fresh += [_between(number + 0.5, number + 0.6) for number in range(20)]
    jobs = []
    for size in (SIZES[0], SIZES[-1]):
        matcher = _matcher(mixed(size).selectors)

        def job(matcher: Matcher[int] = matcher) -> None:
            for selector in fresh:
                matcher.add(-1, selector)
            matcher.remove(-1)

        jobs.append(job)
    few, many = (each / len(fresh) for each in seconds(*jobs, repeat=5))
    detail = f"adding and removing one of 100: {microseconds(few)}, of 100,000: {microseconds(many)}"
    return at_most("matching-churn", many / few, BOUND, detail)


def covering() -> Result:
    """Add 1,000 and then 10,000 subscriptions to a set that forwards only what is not covered."""
    kind = TypeKey(Principal(bytes(32)), "bench.Passage")

    def fill(size: int) -> Callable[[], None]:
        interests = [Interest(kind, selector, schema=SCHEMA) for selector in mixed(size).selectors]

        def job() -> None:
            coverage = Coverage[int](limits=BrokerLimits())
            for key, interest in enumerate(interests):
                coverage.add(key, interest)

        return job

    small, large = seconds(fill(1_000), fill(10_000), repeat=1, rounds=3)
    detail = f"an add among 1,000: {microseconds(small / 1_000)}, among 10,000: {microseconds(large / 10_000)}"
    return at_most("coverage-1000-to-10000", large / small / 10, 2.0, detail)
