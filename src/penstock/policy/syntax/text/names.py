"""Short names of the text form: of categories, functions and operators, and back."""

from collections.abc import Mapping
from typing import Final

from penstock.errors import MalformedError
from penstock.policy.language.datatypes import DOUBLE, INTEGER, STRING, Bag, DataType, Function, Kind
from penstock.policy.language.functions import FUNCTIONS, V1, V2, V3
from penstock.policy.language.requests import ACTION, CATEGORIES, ENVIRONMENT, RESOURCE, SUBJECT

_SUBJECTS: Final = SUBJECT.removesuffix("access-subject")
CATEGORY: Final[Mapping[str, str]] = {
    "subject": SUBJECT,
    "resource": RESOURCE,
    "action": ACTION,
    "environment": ENVIRONMENT,
    **{name: f"{_SUBJECTS}{name}" for name in CATEGORIES.values()},
}
CATEGORY_NAME: Final = {category: name for name, category in CATEGORY.items()}

#: words that mean something, and are not names of attributes and variables
KEYWORDS: Final = frozenset(
    {
        "namespace", "attribute", "policy", "policyset", "rule", "target", "clause", "condition", "permit", "deny",
        "on", "obligation", "advice", "apply", "reference", "variable", "description", "issuer", "version", "earliest",
        "latest", "category", "id", "type", "required", "and", "or", "not", "in", "true", "false", "function", "select",
        "xpath", "of", "context", "prefix",
    }
)  # fmt: skip

COMPARISONS: Final = {
    "==": "equal", "<": "less-than", "<=": "less-than-or-equal", ">": "greater-than", ">=": "greater-than-or-equal",
}  # fmt: skip
#: the same with its sides exchanged
FLIPPED: Final = {"==": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_ARITHMETIC: Final = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "mod"}
_MEANT: Final = {**COMPARISONS, **_ARITHMETIC, "in": "is-in"}
#: operators that take more than two
MANY: Final = ("+", "*", "and", "or")


def _shortest(found: Mapping[str, object], orders: tuple[str, ...]) -> dict[str, str]:
    """Return ids by the last part of them; where several have one, the first of some beginnings has it."""
    short: dict[str, str] = {}
    for beginning in orders:
        for one in found:
            if one.startswith(beginning):
                short.setdefault(one.rpartition(":")[2], one)
    return short


_FUNCTION: Final = _shortest(FUNCTIONS, (V1, V2, V3))


def function_id(name: str) -> str:
    """Return the id of a function that has a short name, and any other name as it is."""
    return _FUNCTION.get(name, name)


def short_name(function: Function) -> str | None:
    """Return the short name of a function; an older or newer one of the same name has none."""
    return function.name if _FUNCTION.get(function.name) == function.id else None


def operator_function(sign: str, of_type: Kind) -> Function:
    """Return what an operator means between values of a type. Raises `MalformedError` (`xacml.arguments`)."""
    name = sign if sign in ("and", "or") else f"{of_type}-{_MEANT.get(sign)}"
    if (sign, of_type) == ("+", STRING):
        name = "string-concatenate"
    found = None if isinstance(of_type, Bag) else _FUNCTION.get(name)
    if found is None:
        raise MalformedError("xacml.arguments", f"there is no `{sign}` of {of_type}")
    return FUNCTIONS[found]


def _operators() -> dict[Function, str]:
    found = {FUNCTIONS[f"{V1}{sign}"]: sign for sign in ("and", "or")}
    found[FUNCTIONS[f"{V2}string-concatenate"]] = "+"
    for short, one in _FUNCTION.items():
        of_type, _, name = short.partition("-")
        for sign, meant in (*COMPARISONS.items(), *_ARITHMETIC.items()):
            plain = sign in COMPARISONS or of_type in (INTEGER.name, DOUBLE.name)
            if name == meant and plain and FUNCTIONS[one].takes[0] in FUNCTIONS[one].takes[-1:]:
                found[FUNCTIONS[one]] = sign
    return found


OPERATORS: Final[Mapping[Function, str]] = _operators()


def one_and_only(of_type: DataType) -> Function:
    """Return the function that takes the one value out of a bag."""
    return FUNCTIONS[_FUNCTION[f"{of_type}-one-and-only"]]


def bag_function(of_type: Kind) -> Function:
    """Return the function that puts values of a type into a bag."""
    return FUNCTIONS[_FUNCTION[f"{of_type}-bag"]]


def is_in(of_type: Kind) -> Function | None:
    """Return the function that finds a value in a bag; paths have none."""
    found = _FUNCTION.get(f"{of_type}-is-in")
    return None if found is None else FUNCTIONS[found]
