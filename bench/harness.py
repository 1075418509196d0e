"""How a benchmark is measured and reported.

A figure is a ratio of two things measured in the same run, by turns, because machines differ and are noisy; an
absolute time proves nothing. The median over the rounds is taken on each side.
"""

from dataclasses import asdict, dataclass

from penstock.simulate.experiments.timing import microseconds, seconds

__all__ = ["Result", "above", "at_least", "at_most", "microseconds", "observed", "seconds"]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of bench/results.json."""

    name: str
    ratio: float
    target: str
    ok: bool
    detail: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def at_most(name: str, ratio: float, bound: float, detail: str) -> Result:
    """Report a ratio that must not exceed `bound`."""
    return Result(name, round(ratio, 4), f"<= {bound:g}", ratio <= bound, detail)


def at_least(name: str, ratio: float, bound: float, detail: str) -> Result:
    """Report a ratio that must reach `bound`."""
    return Result(name, round(ratio, 4), f">= {bound:g}", ratio >= bound, detail)


def above(name: str, ratio: float, bound: float, detail: str) -> Result:
    """Report a ratio that must exceed `bound`."""
    return Result(name, round(ratio, 4), f"> {bound:g}", ratio > bound, detail)


def observed(name: str, ratio: float, detail: str) -> Result:
    """Report a ratio that has no target."""
    return Result(name, round(ratio, 4), "observed", True, detail)
