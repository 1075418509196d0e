"""Trust: reduction against signatures, subscriptions to signed types, and Figure 4.5 of the dissertation.

The paper measured 5-tuple reduction against RSA (Table 4.7: 5.5 against 292 µs), subscriptions with the type cache
against plain types (Table 4.8: 7.1 against 6.8 µs), and both caches against the length of the manager's chain
(Figure 4.5). The same three are measured here, as ratios; `penstock experiment` shows them beside the paper's.
"""

from collections.abc import Sequence

from harness import Result, at_most, microseconds, observed, seconds
from penstock.model.types import EventType
from penstock.simulate.experiments.signed_types import (
    DEFINITION,
    managed_type,
    reduction_and_verification,
    subscriptions,
    type_verification,
)
from penstock.trust.caches import CertificateCache
from penstock.trust.certificates import verify_certificate


def run() -> list[Result]:
    return [*reduction(), subscription(), *chain_lengths()]


def reduction() -> list[Result]:
    plain, verify = seconds(*reduction_and_verification(), repeat=40, rounds=41)
    verification = f"Ed25519 verification {microseconds(verify)}"
    return [
        at_most("reduction-5-chain", plain / verify, 1, f"reduction {microseconds(plain)}, {verification}"),
        observed(
            "table-4.7",
            verify / plain,
            f"verification over reduction: {microseconds(verify)} over {microseconds(plain)}; the paper, with RSA: 53",
        ),
    ]


def subscription() -> Result:
    """Compare requests that bring a signed type, already seen, with requests for a type that needs no signature."""
    plain_type, signed_type, cache_alone = subscriptions()
    # There and back again, so that neither side always comes second; whoever runs first in a round finds everything
    # cold behind the garbage collection, so that one is not counted.
    jobs = (plain_type, plain_type, signed_type, signed_type, plain_type)
    _, first, second, third, fourth = seconds(*jobs, repeat=3, rounds=61)
    plain, cached = first + fourth, second + third
    (lookup,) = seconds(cache_alone, repeat=100)
    detail = (
        f"signed and cached {microseconds(cached / 2)}, plain {microseconds(plain / 2)}; "
        f"the type cache alone {microseconds(lookup)}"
    )
    return at_most("subscription-signed-types", cached / plain, 1.3, detail)


def chain_lengths() -> list[Result]:
    """Figure 4.5: what verifying a type costs as the manager's chain grows; the type cache is off."""
    lengths = range(1, 11)
    without: list[float] = []
    cached: list[float] = []
    plain: list[float] = []
    for length in lengths:
        signed = managed_type(length)
        bare, warm, believed = seconds(
            type_verification(signed, verify_certificate),
            type_verification(signed, CertificateCache()),
            lambda: EventType.of(DEFINITION),
            repeat=3,
            rounds=21,
        )
        without.append(bare)
        cached.append(warm)
        plain.append(believed)
    detail = f"µs for chains of 1 to 10: without cache {series(without)}; with {series(cached)}; plain {series(plain)}"
    return [
        observed(
            f"figure-4.5-chain-{length}",
            cached[length - 1] / without[length - 1],
            detail
            if length == lengths[-1]
            else f"{microseconds(cached[length - 1])} over {microseconds(without[length - 1])}",
        )
        for length in (1, 5, 10)
    ]


def series(values: Sequence[float]) -> str:
    return " ".join(f"{value * 1e6:.0f}" for value in values)
