"""The dissertation on capabilities (paper 5), sections 4.5 and 7.7: signed types, sealed events, hops."""

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Final

from penstock.model.types import EventType, Sealing
from penstock.simulate.experiments.charts import BarChart, ChartLine, LineChart
from penstock.simulate.experiments.experiment import (
    Experiment,
    ExperimentFindings,
    ExperimentMethod,
    Laboratory,
    Paper,
    PaperComparison,
    near,
)
from penstock.simulate.experiments.hop_counts import BrokerGraph, HopCounts, count_hops, random_links
from penstock.simulate.experiments.sealed_delivery import SealingNetwork, in_turn, name_of
from penstock.simulate.experiments.signed_types import (
    DEFINITION,
    managed_type,
    reduction_and_verification,
    subscriptions,
    type_verification,
)
from penstock.simulate.experiments.timing import microseconds, seconds
from penstock.trust.caches import CertificateCache
from penstock.trust.certificates import verify_certificate

# ----------------------------------------------------------------------------------------------------------------------
# Section 4.5: reductions, signatures and caches.


#: seconds that the dissertation prints
_REDUCTION, _RSA = 5.533e-6, 291.926e-6


def _table_47(lab: Laboratory) -> ExperimentFindings:
    reduction, verification = seconds(*reduction_and_verification(), repeat=40, rounds=lab.pick(101, 3))
    ratio = verification / reduction
    rows = [
        ("5-tuple reduction", f"{1e6 * _REDUCTION:.3f} µs", microseconds(reduction)),
        ("verification of one signature", f"{1e6 * _RSA:.3f} µs (RSA)", f"{microseconds(verification)} (Ed25519)"),
        ("verification / reduction", f"{_RSA / _REDUCTION:.1f}", f"{ratio:.2f}"),
    ]
    comparisons = [
        PaperComparison(
            "reducing a chain of five certificates is cheaper than verifying one signature",
            "yes",
            "yes" if ratio > 1 else "no",
            ratio > 1,
            "Ed25519 verifies faster than RSA did.",
        ),
        PaperComparison(
            "over 50 times cheaper",
            "52.8",
            f"{ratio:.1f}",
            ratio > 50,
            f"An Ed25519 signature is verified by compiled code {_RSA / verification:.1f} times as fast as RSA was "
            "then, whereas our reduction is Python that also intersects attributes, forced values and conditions.",
        ),
    ]
    bars = [
        ("reduction, paper", 1e6 * _REDUCTION, True),
        ("reduction, Penstock", 1e6 * reduction, False),
        ("one signature, paper (RSA)", 1e6 * _RSA, True),
        ("one signature, Penstock (Ed25519)", 1e6 * verification, False),
    ]
    chart = BarChart("Reduction of a chain beside one signature", "µs", bars)
    return ExperimentFindings(("operation", "paper", "Penstock"), rows, comparisons, chart)


def _table_48(lab: Laboratory) -> ExperimentFindings:
    plain_type, signed_type, cached_type = subscriptions()
    # Neither side always comes second; the first job of a round finds everything cold, and is not counted.
    jobs = (plain_type, plain_type, signed_type, signed_type, plain_type, cached_type)
    _, first, second, third, fourth, cached = seconds(*jobs, repeat=3, rounds=lab.pick(201, 3))
    plain, signed = (first + fourth) / 2, (second + third) / 2
    ratio = signed / plain
    rows = [
        ("plain types", "6.77 µs", microseconds(plain)),
        ("signed types", "7.10 µs", microseconds(signed)),
        ("signed / plain", "1.05", f"{ratio:.2f}"),
        ("the type cache alone", "-", microseconds(cached)),
    ]
    comparisons = [
        PaperComparison(
            "with the type cache, signed types cost what plain types cost (at most 1.3 times)",
            "1.05",
            f"{ratio:.2f}",
            ratio <= 1.3,
            "The type that comes with a request is compared with the cached one byte by byte.",
        )
    ]
    bars = [
        ("plain types, paper", 6.77, True),
        ("signed types, paper", 7.1, True),
        ("plain types, Penstock", 1e6 * plain, False),
        ("signed types, Penstock", 1e6 * signed, False),
    ]
    chart = BarChart("A subscription to plain and to signed types", "µs", bars)
    instead = {
        "subscription": "reads the client's five certificates, which the certificate cache knows, searches them for "
        "the right to subscribe, and parses and checks a filter; the paper does not say what its subscription does"
    }
    return ExperimentFindings(("event types", "paper", "Penstock"), rows, comparisons, chart, instead)


def _figure_45(lab: Laboratory) -> ExperimentFindings:
    lengths = range(1, 11)
    without: list[float] = []
    cached: list[float] = []
    plain: list[float] = []
    for length in lab.each(lengths):
        signed = managed_type(length)
        bare, warm, believed = seconds(
            type_verification(signed, verify_certificate),
            type_verification(signed, CertificateCache()),
            lambda: EventType.of(DEFINITION),
            repeat=3,
            rounds=lab.pick(41, 3),
        )
        without.append(bare * 1e6)
        cached.append(warm * 1e6)
        plain.append(believed * 1e6)
    growth = {name: (found[-1] - found[0]) / 9 for name, found in (("without", without), ("cached", cached))}
    rows = [
        (str(length), f"{bare:.0f} µs", f"{warm:.0f} µs", f"{believed:.1f} µs", f"{bare / warm:.2f}")
        for length, bare, warm, believed in zip(lengths, without, cached, plain, strict=True)
    ]
    lines = [
        ChartLine("no certificate cache", [*zip(lengths, without, strict=True)]),
        ChartLine("certificate cache", [*zip(lengths, cached, strict=True)]),
        ChartLine("plain types", [*zip(lengths, plain, strict=True)]),
    ]
    chart = LineChart("Verification of a signed type by the length of its chain", "certificates", "µs", lines)
    slower = growth["cached"] / growth["without"]
    comparisons = [
        PaperComparison(
            "without the cache the time grows with each certificate",
            "increases",
            f"{growth['without']:.0f} µs for each",
            growth["without"] > 0,
            "The machine did something else meanwhile.",
        ),
        PaperComparison(
            "with the cache a certificate more costs a fraction (at most 0.5)",
            "the certificates are verified once",
            f"{slower:.2f} of that",
            slower <= 0.5,
            "What is left is reading the certificate and reducing the chain.",
        ),
        PaperComparison(
            "plain types are the cheapest",
            "7.4 µs",
            f"{plain[0]:.1f} µs",
            all(believed < warm for believed, warm in zip(plain, cached, strict=True)),
            "The machine did something else meanwhile.",
        ),
    ]
    headings = ("certificates", "no cache", "cache", "plain", "no cache / cache")
    instead = {
        "measured": "reading the definition of a type and verifying its chain and signature, or reading alone for "
        "plain types; what else a subscription does is the same for all (Table 4.8)"
    }
    return ExperimentFindings(headings, rows, comparisons, chart, instead)


# ----------------------------------------------------------------------------------------------------------------------
# Section 7.7: sealed events.

_WIDTHS: Final = tuple(range(1, 26))
#: for a small share of the events, starting brokers for each width would take most of the time
_FEW_WIDTHS, _FEW_SHARE = (1, 5, 10, 15, 20, 25), 0.0025
_EVENTS, _TURNS = 100_000, 5
#: the modes as the dissertation calls them
_MODES: Final = {Sealing.NONE: "plaintext", Sealing.EVENT: "event level", Sealing.ATTRIBUTE: "attribute level"}
_SEALED: Final = MappingProxyType(
    {"attributes": "1 to 25, strings of 30 characters", "events": "100,000 for each point", "runs": "5"}
)
_THROUGHPUT: Final = (
    "throughput: events for each second of processor time of both clients and both brokers, which are real processes; "
    "the paper ran everything in one simulator"
)


@dataclass(frozen=True, slots=True)
class _Throughput:
    """Events a second by mode and number of attributes."""

    events: int
    turns: int
    widths: Sequence[int]
    rates: Mapping[Sealing, Sequence[float]]

    def share(self, mode: Sealing, width: int) -> float:
        """Return the throughput of a mode as a share of plaintext's."""
        place = self.widths.index(width)
        return self.rates[mode][place] / self.rates[Sealing.NONE][place]

    def findings(self, title: str, comparisons: Sequence[PaperComparison]) -> ExperimentFindings:
        """Return a table and a chart."""
        rows = [
            (
                str(width),
                *(f"{self.rates[mode][place]:,.0f}/s" for mode in _MODES),
                *(f"{self.share(mode, width):.1%}" for mode in (Sealing.EVENT, Sealing.ATTRIBUTE)),
            )
            for place, width in enumerate(self.widths)
        ]
        lines = [ChartLine(name, [*zip(self.widths, self.rates[mode], strict=True)]) for mode, name in _MODES.items()]
        chart = LineChart(title, "attributes", "events for each second of processor time", lines)
        headings = ("attributes", *_MODES.values(), "event level / plaintext", "attribute level / plaintext")
        instead = {"measured": _THROUGHPUT}
        if (self.events, self.turns) != (_EVENTS, _TURNS):
            instead["events"] = f"{self.events:,} for each point, {self.turns} runs"
        if tuple(self.widths) != _WIDTHS:
            instead["attributes"] = ", ".join(map(str, self.widths))
        return ExperimentFindings(headings, rows, comparisons, chart, instead)


def _throughput(lab: Laboratory, mode: str) -> _Throughput:
    """Measure plain and sealed events by turns, each event in a message of its own."""
    events, turns = lab.some(_EVENTS, 200), lab.pick(_TURNS, 1)
    widths = lab.pick(_WIDTHS if lab.share > _FEW_SHARE else _FEW_WIDTHS, (1, 10))
    rates: dict[Sealing, list[float]] = {one: [] for one in _MODES}
    for width in lab.each(widths):
        names = [name_of(one, width) for one in _MODES]
        with ExitStack() as stack:
            network = SealingNetwork(partial(lab.part, stack), mode, width)
            for name in names:
                network.prepare(name, 1, min(events, 100))
            for turn in range(turns):
                for name in in_turn(names, turn):
                    if mode == "presealed":
                        network.preseal(name, 1, events)
                    network.carry(name, 1, events)
            for one, name in zip(_MODES, names, strict=True):
                rates[one].append(network.rates(name, 1)[0])
    return _Throughput(events, turns, widths, rates)


def _figure_78(lab: Laboratory) -> ExperimentFindings:
    found = _throughput(lab, "no-cache")
    one, ten = (found.share(Sealing.ATTRIBUTE, width) for width in (1, 10))
    ahead = {width: found.share(Sealing.EVENT, width) / found.share(Sealing.ATTRIBUTE, width) for width in found.widths}
    behind = {width: ratio for width, ratio in ahead.items() if width > 1 and ratio <= 1}
    shares = [found.share(Sealing.ATTRIBUTE, width) for width in found.widths]
    third = max(1, len(shares) // 3)
    few, many = statistics.median(shares[:third]), statistics.median(shares[-third:])
    cheaper = (
        "AES-GCM in compiled code costs less than EAX in Java did, and attributes are written as bytes once, without "
        "object serialisation."
    )
    comparisons = [
        PaperComparison(
            "sealing each attribute takes throughput",
            "46 % of plaintext with one attribute, 11.7 % with ten",
            f"{one:.1%} and {ten:.1%}; at most {max(shares):.1%}",
            max(shares) < 1,
            "The machine did something else while plaintext was carried.",
        ),
        PaperComparison(
            "and more with more attributes (median of the third with most / with fewest attributes)",
            "less than 1",
            f"{many:.1%} / {few:.1%}: {many / few:.2f}",
            many < few,
            "Plaintext takes more time with each attribute, too: clients and brokers write and read it in Python, and "
            "sealing in compiled code costs about as much again for each attribute.",
        ),
        PaperComparison(
            "sealing whole events is faster than sealing each of several attributes",
            "always",
            f"for {len(ahead) - 1 - len(behind)} of {len(ahead) - 1} numbers of attributes",
            not behind,
            f"It is slower with {', '.join(map(str, behind))} attributes, by {_behind(behind)} at most; neighbouring "
            "numbers of attributes differ from each other by as much.",
        ),
        near("attribute level / plaintext, one attribute", 0.46, one, cheaper),
        near("attribute level / plaintext, ten attributes", 0.117, ten, cheaper),
    ]
    return found.findings("Throughput of sealed events", comparisons)


def _behind(ratios: Mapping[int, float]) -> str:
    return f"{1 - min(ratios.values(), default=1.0):.0%}"


def _figure_79(lab: Laboratory) -> ExperimentFindings:
    found = _throughput(lab, "presealed")
    first, last = found.widths[0], found.widths[-1]
    shares = {mode: [found.share(mode, width) for width in found.widths] for mode in (Sealing.EVENT, Sealing.ATTRIBUTE)}
    apart = statistics.median(abs(a / b - 1) for a, b in zip(*shares.values(), strict=True))
    lost = {width: 1 - found.share(Sealing.ATTRIBUTE, width) for width in (first, last)}
    beside = (
        "An event has a message and a block of its own here, whose header and ciphertext one broker writes and the "
        "other one reads; the paper's brokers handed over objects in one process."
    )
    comparisons = [
        PaperComparison(
            "both sealed modes follow each other very closely (median difference at most 10 %)",
            "very closely",
            f"{apart:.1%}",
            apart <= 0.1,
            "Each attribute that is sealed by itself is a part of its own in the message.",
        ),
        PaperComparison(
            "with plaintext beside, sealed events lose little with one attribute (at most 10 %)",
            "3.7 %",
            f"{lost[first]:.1%}",
            lost[first] <= 0.1,
            beside,
        ),
        PaperComparison(f"and with {last} (at most 10 %)", "2.5 %", f"{lost[last]:.1%}", lost[last] <= 0.1, beside),
    ]
    return found.findings("Throughput of sealed events with plaintext beside", comparisons)


# ----------------------------------------------------------------------------------------------------------------------
# Section 7.7.3: hops.

_BROKERS, _DEGREE, _DRAWS = 2_000, 16, 3
#: seconds of the processor that it may take
_HOPS_LIMIT: Final = 300.0
_GROUPS: Final = (*range(1, 11), *range(15, 51, 5))
#: average hops that the paper prints, by groups: attribute level and event level
_HOPS: Final = MappingProxyType({3: (9.0, 30.8), 10: (24.2, 251.0)})


def _figure_710(lab: Laboratory) -> ExperimentFindings:
    brokers, degree, groups, draws = lab.pick((_BROKERS, _DEGREE, _GROUPS, _DRAWS), (60, 6, (1, 3, 10), 2))
    random = Random(1)  # noqa: S311  # the same hops in each run
    graph = BrokerGraph(random_links(brokers, degree, random))
    start = time.process_time()
    drawn = [count_hops(graph, groups, random) for _ in lab.each(range(draws))]
    taken = time.process_time() - start
    found = [
        HopCounts(*(statistics.mean(getattr(one[place], name) for one in drawn) for name in HopCounts.__slots__))
        for place in range(len(groups))
    ]
    by_groups = dict(zip(groups, found, strict=True))
    rows = []
    for number, one in by_groups.items():
        printed = _HOPS.get(number)
        rows.append(
            (
                str(number),
                "-" if printed is None else f"{printed[0]} and {printed[1]}: {printed[1] / printed[0]:.1f}",
                f"{one.attribute_level:.1f}",
                f"{one.event_level:.1f}",
                f"{one.event_level / one.attribute_level:.1f}",
                f"{one.own_types:.1f}",
            )
        )
    otherwise = "The paths of an overlay of Pastry differ from those of a random graph."
    comparisons = [
        near(
            f"event level / attribute level, {number} groups",
            round(printed[1] / printed[0], 1),
            by_groups[number].event_level / by_groups[number].attribute_level,
            otherwise,
        )
        for number, printed in _HOPS.items()
    ]
    comparisons.append(
        PaperComparison(
            f"processor time for {brokers:,} brokers (at most {_HOPS_LIMIT:g} s)",
            "not said",
            f"{taken:.0f} s",
            taken <= _HOPS_LIMIT,
            "The machine is slower than the one that the limit is for.",
        )
    )
    lines = [
        ChartLine("attribute level", [(n, one.attribute_level) for n, one in by_groups.items()]),
        ChartLine("event level", [(n, one.event_level) for n, one in by_groups.items()]),
        ChartLine("own type for each group", [(n, one.own_types) for n, one in by_groups.items()]),
    ]
    chart = LineChart("Hops of publications by groups of subscribers", "groups", "hops", lines, log_y=True)
    instead = {
        "network": f"{brokers:,} brokers in a random graph of degree {degree}, whose paths are about as long as those "
        f"of Pastry; mean of {draws} publishers with their subscribers",
        "event level": "one event of a sub-type for each group, which reaches all subscribers of the super-type, as "
        "the paper's hops for each publication show",
        "own type for each group": "if each group subscribes to its own type alone, events go only where they are read",
    }
    headings = ("groups", "paper", "attribute level", "event level", "event / attribute level", "own types")
    return ExperimentFindings(headings, rows, comparisons, chart, instead)


EXPERIMENTS: Final = (
    Experiment(
        "capabilities-table4.7",
        Paper.CAPABILITIES,
        "Table 4.7",
        "Reduction of a chain of five certificates beside one signature",
        ExperimentMethod.TIMED,
        {"chain": "5 certificates", "signature": "1024-bit RSA; ours is Ed25519"},
        _table_47,
    ),
    Experiment(
        "capabilities-table4.8",
        Paper.CAPABILITIES,
        "Table 4.8",
        "A subscription to plain and to signed types, with the type cache",
        ExperimentMethod.TIMED,
        {"type cache": "on"},
        _table_48,
    ),
    Experiment(
        "capabilities-fig4.5",
        Paper.CAPABILITIES,
        "Figure 4.5",
        "Verification of signed types with and without the certificate cache, by the length of the chain",
        ExperimentMethod.TIMED,
        {"chain": "ours 1 to 10 certificates", "type cache": "off"},
        _figure_45,
    ),
    Experiment(
        "capabilities-fig7.8",
        Paper.CAPABILITIES,
        "Figure 7.8",
        "Throughput of plain events, event level and attribute level encryption",
        ExperimentMethod.TIMED,
        _SEALED,
        _figure_78,
    ),
    Experiment(
        "capabilities-fig7.9",
        Paper.CAPABILITIES,
        "Figure 7.9",
        "The same with the plaintext beside the ciphertext, sealed before",
        ExperimentMethod.TIMED,
        _SEALED,
        _figure_79,
    ),
    Experiment(
        "capabilities-fig7.10",
        Paper.CAPABILITIES,
        "Figure 7.10",
        "Hops if attribute level encryption is emulated with sub-types",
        ExperimentMethod.COUNTED,
        {"brokers": "2,000", "groups": "1 to 50", "publishers": "1"},
        _figure_710,
    ),
)
