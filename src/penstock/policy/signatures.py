"""What functions take and give: data types, bags of them, and how an error within a function is told."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from penstock.errors import EvaluationError
from penstock.policy.datatypes import DataType, Value


@dataclass(frozen=True, slots=True)
class Bag:
    """A bag of values of one type."""

    of: DataType

    def __str__(self) -> str:
        return f"bag of {self.of}"


Kind: TypeAlias = DataType | Bag

ERROR: Final = "xacml.processing"
"""The code of what the standard calls a processing error."""


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function: the kinds of its arguments, whether the last one may come any number of times, and of the result.

    `call` takes values and gives one; where it looks `within` the request, it takes the context before them. It raises
    `EvaluationError` (`xacml.processing`; `xacml.value` for texts that are no values), and nothing else.
    """

    id: str
    takes: tuple[Kind, ...]
    gives: Kind
    call: Callable[..., Value] = field(repr=False)
    #: the last kind may come any number of times, and so often at least
    repeated: int | None = None
    #: what it gives depends on the request, and not on its arguments alone
    within: bool = False
    #: refuses a first argument that can mean nothing, where it stands in a policy. Raises `MalformedError`
    check: Callable[[Value], None] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The last part of its id."""
        return self.id.rpartition(":")[2]

    def accepts(self, kinds: tuple[Kind, ...]) -> bool:
        """Say whether it can be called with arguments of these kinds."""
        if self.repeated is None:
            return kinds == self.takes
        fixed = self.takes[:-1]
        rest = kinds[len(fixed) :]
        return (
            kinds[: len(fixed)] == fixed and len(rest) >= self.repeated and all(one == self.takes[-1] for one in rest)
        )


def failed(message: str) -> EvaluationError:
    """Return the error of a function that has no value for its arguments."""
    return EvaluationError(ERROR, message)
