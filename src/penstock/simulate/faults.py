"""Faults as data: what goes wrong, when, for how long, and where."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong, as one line: `at kind seconds where...`.

    `where` has names of processes, and amounts if the kind of fault needs one.

    >>> Fault.parse("3.2 partition 4 pep1 fabric")
    Fault(at=3.2, kind='partition', seconds=4.0, where=('pep1', 'fabric'))
    >>> str(Fault(0.5, "loss", 2.0, ("fabric", "0.2")))
    '0.5 loss 2 fabric 0.2'
    """

    at: float
    kind: str
    seconds: float
    where: tuple[str, ...] = ()

    @classmethod
    def parse(cls, line: str) -> Self:
        """Read one line. Raises `ValueError`."""
        at, kind, seconds, *where = line.split()
        return cls(float(at), kind, float(seconds), (*where,))

    def __str__(self) -> str:
        return " ".join((f"{self.at:.6g}", self.kind, f"{self.seconds:.6g}", *self.where))
