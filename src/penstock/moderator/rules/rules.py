"""Rules: what publishers and subscribers state about one event type (paper 1, section II).

    (publish-rule (id <id>) (event <owner> <name>) (publishers <principal> …)
                  (fnc-p <selector>) (fnc-s <selector>) (valid …) (stated-by <principal>))
    (subscribe-rule (id <id>) (event <owner> <name>) (subscriber <principal>)
                    (fnc-p <selector>) (valid …) (stated-by <principal>))

`P.publish(e, fnc_p, fnc_s)`: only publishers whose profiles satisfy `fnc_p` publish events of type `e`, and only
subscribers whose profiles satisfy `fnc_s` receive them. `S.subscribe(e, fnc_p)`: S wants them from such publishers
alone. A rule is a claim that whoever stated it signs (`penstock.trust.signed`); what it may speak about is for a
`Vocabulary` to check.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, ClassVar, Final, TypeAlias

from penstock.codec.sexp import Form, ListForm, SExp, text
from penstock.errors import LimitError, MalformedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.moderator.limits import MODERATOR_FUNCTIONS, MODERATOR_ID_LENGTH, MODERATOR_PUBLISHERS
from penstock.selector import ALWAYS, Selector, parse
from penstock.trust.signed import Claim, malformed, read_owner
from penstock.trust.validity import ALWAYS as FOREVER
from penstock.trust.validity import ValidityField

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*", re.ASCII)


# A log says the same again and again: what was stated, asked for, in force before and after.
@lru_cache(maxsize=MODERATOR_FUNCTIONS)
def _parsed(function: str) -> Selector:
    return parse(function)


def _read_event(parts: tuple[SExp, ...]) -> TypeKey:
    match parts:
        case (owner, name):
            return TypeKey(read_owner(owner), text(name))
    raise malformed("a rule is about one `(event <owner> <name>)`")


EventField = Annotated[TypeKey, ListForm(lambda event: (str(event.owner).encode(), event.name.encode()), _read_event)]
"""The `(event <owner> <name>)` of a rule."""
_FUNCTION: Final[Form[Selector]] = Form(lambda function: function.text.encode(), lambda value: _parsed(text(value)))


@dataclass(frozen=True, slots=True)
class PublishRule(Claim):
    """`P.publish(e, fnc_p, fnc_s)`; several publishers where they agreed on one rule (the paper's P_list).

    Raises `MalformedError` (`moderator.rule`), `LimitError` (`moderator.limit`).
    """

    HEAD: ClassVar = b"publish-rule"
    ORDER: ClassVar = ("id", "event", "publishers", "fnc_p", "fnc_s", "validity", "stated_by")
    SIGNER: ClassVar = "stated_by"
    id: str
    event: EventField
    publishers: tuple[Principal, ...]
    stated_by: Principal
    # What somebody demands of others stands in these, which no log may show.
    fnc_p: Annotated[Selector, _FUNCTION] = field(default=ALWAYS, repr=False)
    fnc_s: Annotated[Selector, _FUNCTION] = field(default=ALWAYS, repr=False)
    validity: ValidityField = FOREVER

    def __post_init__(self) -> None:
        _check_id(self.id)
        if not self.publishers or len(set(self.publishers)) != len(self.publishers):
            raise MalformedError("moderator.rule", f"rule `{self.id}` is of no publisher, or of one twice")
        if len(self.publishers) > MODERATOR_PUBLISHERS:
            raise LimitError("moderator.limit", f"a rule is of more than {MODERATOR_PUBLISHERS} publishers")

    @property
    def speakers(self) -> frozenset[Principal]:
        """The principal that stated the rule, and those that it binds too."""
        return frozenset({self.stated_by, *self.publishers})

    def rests(self, away: Collection[Principal]) -> bool:
        """Say whether it rests while some are away: whoever stated it, or all publishers that it is of."""
        return self.stated_by in away or all(publisher in away for publisher in self.publishers)

    def without(self, away: Collection[Principal]) -> "PublishRule":
        """Return what it says while some are away, of those who are there. Raises as the rule where none is."""
        if not any(publisher in away for publisher in self.publishers):
            return self
        return replace(self, publishers=tuple(publisher for publisher in self.publishers if publisher not in away))


@dataclass(frozen=True, slots=True)
class SubscribeRule(Claim):
    """`S.subscribe(e, fnc_p)`. Raises `MalformedError` (`moderator.rule`), `LimitError` (`moderator.limit`)."""

    HEAD: ClassVar = b"subscribe-rule"
    ORDER: ClassVar = ("id", "event", "subscriber", "fnc_p", "validity", "stated_by")
    SIGNER: ClassVar = "stated_by"
    id: str
    event: EventField
    subscriber: Principal
    stated_by: Principal
    fnc_p: Annotated[Selector, _FUNCTION] = field(default=ALWAYS, repr=False)
    validity: ValidityField = FOREVER

    def __post_init__(self) -> None:
        _check_id(self.id)

    @property
    def speakers(self) -> frozenset[Principal]:
        """Whoever stated the rule, and whoever is subscribed by it."""
        return frozenset({self.stated_by, self.subscriber})

    def rests(self, away: Collection[Principal]) -> bool:
        """Say whether it rests while some are away: whoever stated it, or whoever is subscribed by it."""
        return self.stated_by in away or self.subscriber in away


Rule: TypeAlias = PublishRule | SubscribeRule


def _check_id(rule_id: str) -> None:
    if not _ID.fullmatch(rule_id):
        raise MalformedError(
            "moderator.rule",
            f"`{rule_id[:80]}` is not a rule id",
            hint="allowed: ASCII letters, digits, `.`, `_`, `:` and `-`, beginning with a letter or a digit",
        )
    if len(rule_id) > MODERATOR_ID_LENGTH:
        raise LimitError("moderator.limit", f"an id is longer than {MODERATOR_ID_LENGTH}")
