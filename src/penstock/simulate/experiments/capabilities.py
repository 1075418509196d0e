"""The dissertation on capabilities (paper 5), sections 4.5 and 7.7: signed types, sealed events, hops."""

from typing import Final

from penstock.model.types import EventType
from penstock.simulate.experiments.charts import ChartLine, LineChart
from penstock.simulate.experiments.experiment import (
    Experiment,
    ExperimentFindings,
    ExperimentMethod,
    Laboratory,
    Paper,
    PaperComparison,
)
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


def _table_47(lab: Laboratory) -> ExperimentFindings:
    reduction, verification = seconds(*reduction_and_verification(), repeat=40, rounds=lab.pick(101, 3))
    ratio = verification / reduction
    rows = [
        ("5-tuple reduction", "5.533 µs", microseconds(reduction)),
        ("verification of one signature", "291.926 µs (RSA)", f"{microseconds(verification)} (Ed25519)"),
        ("verification / reduction", "52.8", f"{ratio:.2f}"),
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
            "An Ed25519 signature is verified by compiled code three times as fast as RSA was then, whereas our "
            "reduction is Python that also intersects attributes, forced values and conditions.",
        ),
    ]
    return ExperimentFindings(("operation", "paper", "Penstock"), rows, comparisons)


def _table_48(lab: Laboratory) -> ExperimentFindings:
    plain_type, signed_type, _ = subscriptions()
    # Neither side always comes second; the first job of a round finds everything cold, and is not counted.
    jobs = (plain_type, plain_type, signed_type, signed_type, plain_type)
    _, first, second, third, fourth = seconds(*jobs, repeat=3, rounds=lab.pick(201, 3))
    plain, signed = (first + fourth) / 2, (second + third) / 2
    ratio = signed / plain
    rows = [
        ("plain types", "6.77 µs", microseconds(plain)),
        ("signed types", "7.10 µs", microseconds(signed)),
        ("signed / plain", "1.05", f"{ratio:.2f}"),
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
    return ExperimentFindings(("event types", "paper", "Penstock"), rows, comparisons)


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
    chart = LineChart("Time of a subscription by the length of the chain", "certificates", "µs", lines)
    slower = growth["cached"] / growth["without"]
    comparisons = [
        PaperComparison(
            "without the cache the time grows with each certificate",
            "linear",
            f"{growth['without']:.0f} µs for each",
            growth["without"] > 0,
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
        ),
    ]
    headings = ("certificates", "no cache", "cache", "plain", "no cache / cache")
    return ExperimentFindings(headings, rows, comparisons, chart)


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
        "Subscriptions with and without the certificate cache, by the length of the chain",
        ExperimentMethod.TIMED,
        {"chain": "1 to 10 certificates", "type cache": "off"},
        _figure_45,
    ),
)
