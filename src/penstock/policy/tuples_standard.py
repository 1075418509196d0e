"""The combining algorithms of XACML 3.0 (appendix C), and those before it, as decision tuples of extended letters."""

from collections.abc import Mapping
from typing import Final, TypeAlias

Elements: TypeAlias = Mapping[str, str]

_FAILED: Final = ("IN_P", "IN_D", "IN_DP")


def _none(*letters: str) -> str:
    return " and ".join(f"#{letter} = 0" for letter in letters)


def _some(*letters: str) -> str:
    return " or ".join(f"#{letter} > 0" for letter in letters)


_NOTHING: Final = _none("P", "D", *_FAILED)


def _overrides(strong: str, weak: str) -> Elements:
    """C.2, C.4."""
    return {
        strong: f"#{strong} > 0",
        weak: f"#{strong} = 0 and #IN_DP = 0 and #IN_{strong} = 0 and #{weak} > 0",
        "NA": _NOTHING,
        f"IN_{strong}": f"#{strong} = 0 and #IN_DP = 0 and #IN_{strong} > 0 and #IN_{weak} = 0 and #{weak} = 0",
        f"IN_{weak}": f"#{strong} = 0 and #IN_DP = 0 and #IN_{strong} = 0 and #{weak} = 0 and #IN_{weak} > 0",
        "IN_DP": f"#{strong} = 0 and (#IN_DP > 0 or (#IN_{strong} > 0 and (#IN_{weak} > 0 or #{weak} > 0)))",
    }


def _unless(strong: str, other: str) -> Elements:
    """C.6, C.7."""
    return {strong: f"#{strong} > 0", other: f"#{strong} = 0", "IN_DP": "none"}


def _legacy_rules(strong: str, weak: str) -> Elements:
    """C.10, C.12."""
    spared = f"#{strong} = 0 and #IN_DP = 0 and #IN_{strong} = 0"
    return {
        strong: f"#{strong} > 0",
        "IN_DP": f"#{strong} = 0 and #IN_DP > 0",
        f"IN_{strong}": f"#{strong} = 0 and #IN_DP = 0 and #IN_{strong} > 0",
        weak: f"{spared} and #{weak} > 0",
        f"IN_{weak}": f"{spared} and #{weak} = 0 and #IN_{weak} > 0",
        "NA": _NOTHING,
    }


#: C.11
_LEGACY_DENY: Final = {
    "D": _some("D", *_FAILED), "P": f"{_none('D', *_FAILED)} and #P > 0", "NA": _NOTHING, "IN_DP": "none",
}  # fmt: skip
#: C.13
_LEGACY_PERMIT: Final = {
    "P": "#P > 0", "D": "#P = 0 and #D > 0", "IN_DP": f"#P = 0 and #D = 0 and ({_some(*_FAILED)})", "NA": _NOTHING,
}  # fmt: skip
#: C.8
_FIRST: Final = {
    "P": "NA* P .*", "D": "NA* D .*", "NA": "NA*", "IN_P": "NA* IN_P .*", "IN_D": "NA* IN_D .*",
    "IN_DP": "NA* IN_DP .*",
}  # fmt: skip
#: C.9: which children are applicable, it asks of their targets; here it is what they say
_ONLY_ONE: Final = {
    "P": "NA* P NA*", "D": "NA* D NA*", "NA": "NA*", "IN_P": "NA* IN_P NA*", "IN_D": "NA* IN_D NA*",
    "IN_DP": "NA* IN_DP .* | NA* (P | D | IN_P | IN_D) NA* (P | D | IN_P | IN_D | IN_DP) .*",
}  # fmt: skip


def _on_permit_second() -> Elements:
    """Two or three: the second where the first permits, the third where it does not; either where that is not known."""
    not_first, unknown = "(D | NA | IN_D)", "(IN_P | IN_DP)"
    taken = {letter: f"P {letter} .? | {not_first} . {letter}" for letter in ("P", "D", "NA", *_FAILED)}
    permit, deny = "(P | IN_P)", "(D | IN_D)"

    def one_sided(side: str) -> str:
        return f"{unknown} ({side} | {side} NA | NA {side} | {side} {side})"

    return {
        "P": taken["P"],
        "D": taken["D"],
        "NA": f"{taken['NA']} | {not_first} . | {unknown} NA NA?",
        "IN_P": f"{taken['IN_P']} | {one_sided(permit)}",
        "IN_D": f"{taken['IN_D']} | {one_sided(deny)}",
        "IN_DP": (
            f"{taken['IN_DP']} | {unknown} (IN_DP .? | . IN_DP | {permit} {deny} | {deny} {permit})"
            " | .? | . . . . .*"
        ),
    }  # fmt: skip


_V1, _V11, _V3 = (f"urn:oasis:names:tc:xacml:{version}:" for version in ("1.0", "1.1", "3.0"))
_RULES: Final = "rule-combining-algorithm:"
_POLICIES: Final = "policy-combining-algorithm:"

STANDARD: Final[Mapping[str, Elements]] = {
    **{
        f"{_V3}{kind}{name}": elements
        for kind in (_RULES, _POLICIES)
        for name, elements in {
            **{f"{ordered}deny-overrides": _overrides("D", "P") for ordered in ("", "ordered-")},
            **{f"{ordered}permit-overrides": _overrides("P", "D") for ordered in ("", "ordered-")},
            "deny-unless-permit": _unless("P", "D"),
            "permit-unless-deny": _unless("D", "P"),
        }.items()
    },
    **{f"{_V1}{kind}first-applicable": _FIRST for kind in (_RULES, _POLICIES)},
    f"{_V1}{_POLICIES}only-one-applicable": _ONLY_ONE,
    f"{_V3}{_POLICIES}on-permit-apply-second": _on_permit_second(),
    **{f"{begin}deny-overrides": _legacy_rules("D", "P") for begin in (f"{_V1}{_RULES}", f"{_V11}{_RULES}ordered-")},
    **{f"{begin}permit-overrides": _legacy_rules("P", "D") for begin in (f"{_V1}{_RULES}", f"{_V11}{_RULES}ordered-")},
    **{f"{begin}deny-overrides": _LEGACY_DENY for begin in (f"{_V1}{_POLICIES}", f"{_V11}{_POLICIES}ordered-")},
    **{f"{begin}permit-overrides": _LEGACY_PERMIT for begin in (f"{_V1}{_POLICIES}", f"{_V11}{_POLICIES}ordered-")},
}
"""Each algorithm of the standard, by its id, as a decision tuple."""
