"""Compile restrictions to Python functions that a local broker runs for every event.

On publishing: attributes that the publisher may not set become null, forced values are set, selectors, guards and
conditions are checked. On delivery: selectors, guards and conditions are checked, attributes that the subscriber may
not see become null, the event is translated to the subscriber's version, and the subscriber's own selector is asked
about the masked view alone, so that a filter never tells what a field would not.

Whatever raises refuses: a selector without a value, a guard that fails, a guard that is not known. Values are looked at
once more on both ways, since an event may come from a client or a broker that checked nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from types import CodeType, MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.codec.sexp import SExp, canonical
from penstock.codec.values import value_to_sexp
from penstock.crypto import digest
from penstock.errors import EvaluationError, MalformedError, PenstockError, RefusedError, expect
from penstock.guard.environment import environment_schema
from penstock.guard.restriction import Branch, Restriction, check_forced
from penstock.model.events import Event, EventRows, TransitEvent
from penstock.model.names import AttributeId, TypeKey
from penstock.model.types import Attribute, EventType
from penstock.model.values import (
    INTEGER_MAX,
    INTEGER_MIN,
    Kind,
    Scalar,
    Schema,
    Value,
    checked_value,
    kind_of,
    quick_test,
)
from penstock.selector import ALWAYS as TRUE
from penstock.selector import Selector, compile_selector
from penstock.selector.compile import compile_for_rows
from penstock.trust.capabilities import Right

# ----------------------------------------------------------------------------------------------------------------------
# Generated code for each attribute of each event. The rest of enforcement runs once for each event.
#
# The code holds no text from outside: names, ids and tests are handed to it, and it calls them by numbers.


Values: TypeAlias = Mapping[str, Scalar]

Show: TypeAlias = Callable[[Values, dict[str, Scalar]], None]
"""Copies values from attribute ids to the names under which a reader sees them."""

State: TypeAlias = Callable[[Values], dict[Any, Scalar]]
"""Converts values by name to values by attribute id, without nulls."""

Row: TypeAlias = list[Any]
"""An event as it crosses a connection: its id, its time, and a value for each attribute of its version, in order."""

ShowRows: TypeAlias = Callable[[Sequence[Row], Values], list[Row]]
"""Returns what a reader may see of rows, in the reader's version of the type."""

AdmitRows: TypeAlias = Callable[[Sequence[Row], int, Callable[[Row], Row | None]], list[Row]]
"""Returns what may be published of rows. Rows that are not regular, or may have more bytes than given, are asked about
one by one."""

# The same questions as `quick_test` asks, written out: a call costs more than most of them.
_TESTS: Final = {
    Kind.STRING: "value.__class__ is str and value.isascii()",
    Kind.INTEGER: f"value.__class__ is int and {INTEGER_MIN} <= value <= {INTEGER_MAX}",
    Kind.FLOAT: "value.__class__ is float",
    Kind.BOOLEAN: "value.__class__ is bool",
    Kind.TIMESTAMP: "value.__class__ is datetime and value.tzinfo is UTC",
}


def shower(attributes: Iterable[Attribute]) -> Show:
    """Return the function that shows attributes.

    A value that does not fit becomes null: its UID was reused against the rules, or a broker on the way did not check
    it.
    """
    lines = ["def show(values, shown):", " get = values.get"]
    known: dict[str, Any] = {}
    for number, attribute in enumerate(attributes):
        test = _bind(known, number, attribute, _mended)
        lines += [
            f" value = get(id{number})",
            " if value is not None:",
            f"  shown[name{number}] = value if {test} else mended{number}(value)",
        ]
    return _compiled(lines, known)  # type: ignore[no-any-return]  # the function above


def stater(attributes: Iterable[Attribute], passed: Callable[[Attribute], bool] = lambda _attribute: True) -> State:
    """Return the function that takes a publisher's attributes and passes on the permitted ones.

    It raises `MalformedError` (`value.*`) for a value that does not fit, whether it may pass or not.
    """
    lines = ["def state(values):", " get = values.get", " stated = {}"]
    known: dict[str, Any] = {}
    for number, attribute in enumerate(attributes):
        test = _bind(known, number, attribute, _checked)
        lines += [f" value = get(name{number})", " if value is not None:"]
        if passed(attribute):
            lines.append(f"  stated[id{number}] = value if {test} else mended{number}(value)")
        else:
            lines.append(f"  {test} or mended{number}(value)")
    return _compiled([*lines, " return stated"], known)  # type: ignore[no-any-return]  # the function above


def row_writer(attributes: Iterable[Attribute]) -> Callable[[Values], list[Scalar]]:
    """Return the function that takes values under names and returns those of all attributes, in their order.

    It raises `MalformedError` (`value.*`) for a value that does not fit.
    """
    lines, known, values = ["def write(values):", " get = values.get"], dict[str, Any](), list[str]()
    for number, attribute in enumerate(attributes):
        test = _bind(known, number, attribute, _checked).replace("value", f"v{number}")
        values.append(f"v{number}")
        lines += [
            f" v{number} = get(name{number})",
            f" if v{number} is not None and not ({test}):",
            f"  v{number} = mended{number}(v{number})",
        ]
    return _compiled([*lines, f" return [{', '.join(values)}]"], known)  # type: ignore[no-any-return]  # the function above


def admitter(attributes: Sequence[Attribute], passed: Callable[[Attribute], bool]) -> AdmitRows:
    """Return the loop that lets rows pass whose values fit, without the attributes that may not pass.

    The bytes of an event are counted as `Usages` counts them, with four for each character.
    """
    known: dict[str, Any] = {}
    values = [f"v{number}" for number in range(len(attributes))]
    tests = []
    for number, attribute in enumerate(attributes):
        test = _bind(known, number, attribute, _checked).replace("value", f"v{number}")
        tests.append(f"(v{number} is None or {test})")
    texts = [f"v{number}" for number, one in enumerate(attributes) if one.spec.kind is Kind.STRING]
    size = " + ".join([f"len(i) + {8 * len(values)}", *(f"(0 if {text} is None else len({text}))" for text in texts)])
    kept = [f"v{number}" if passed(one) else "None" for number, one in enumerate(attributes)]
    row = "row" if kept == values else f"[{', '.join(['i', 't', *kept])}]"
    lines = [
        "def admit(rows, most, ask):",
        " found = []",
        " for row in rows:",
        f"  {', '.join(['i', 't', *values])} = row",
        f"  if {' and '.join([*tests, f'4 * ({size}) <= most'])}:",
        f"   found.append({row})",
        "  elif (asked := ask(row)) is not None:",
        "   found.append(asked)",
        " return found",
    ]
    return _compiled(lines, known)  # type: ignore[no-any-return]  # the function above


def _bind(
    known: dict[str, Any], number: int, attribute: Attribute, mend: Callable[[Attribute], Callable[[Value], Scalar]]
) -> str:
    known[f"id{number}"] = attribute.id
    known[f"name{number}"] = attribute.name
    known[f"mended{number}"] = mend(attribute)
    if attribute.spec.domain is None:
        return _TESTS[attribute.spec.kind]
    known[f"fits{number}"] = quick_test(attribute.spec)
    return f"fits{number}(value)"


def _compiled(lines: list[str], known: dict[str, Any]) -> Any:
    # Arguments with defaults are found sooner than global names.
    head, *body = lines
    bound = ", ".join(f"{name}={name}" for name in (*known, "datetime", "UTC"))
    source = "\n".join((f"{head[:-2]}, {bound}):", *body))
    made: dict[str, Any] = {**known, "datetime": datetime, "UTC": UTC, "__name__": __name__}
    exec(_code(source), made)  # noqa: S102  # the source holds numbers only
    return made[head[4 : head.index("(")]]


@lru_cache(maxsize=1_024)
def _code(source: str) -> CodeType:
    # Types that have as many attributes of the same kinds share it.
    return compile(source, "<columns>", "exec")


def _checked(attribute: Attribute) -> Callable[[Value], Scalar]:
    return lambda value: checked_value(attribute.name, attribute.spec, value)


def _mended(attribute: Attribute) -> Callable[[Value], Scalar]:
    def mended(value: Value) -> Scalar:
        try:
            return checked_value(attribute.name, attribute.spec, value)
        except MalformedError:
            return None

    return mended


# ----------------------------------------------------------------------------------------------------------------------
# Restrictions compiled to Python functions, which a local broker runs for every event.


Environment: TypeAlias = Mapping[str, Scalar]

Guard: TypeAlias = Callable[[Values, Environment], bool]
"""A predicate that only the local broker can evaluate. It sees the whole event. Anything but True refuses."""


class OwnGuard(str):
    """The name of a guard that contains its own function, so that brokers need not know it."""

    __slots__ = ("ask",)

    ask: Guard

    def __new__(cls, name: str, ask: Guard) -> "OwnGuard":
        """Name a guard. Those of one name must ask the same."""
        self = super().__new__(cls, name)
        self.ask = ask
        return self


class BoundGuard(str):
    """A broker's guard with arguments: it is called with the values of its parameters in place of the event's values.

    A parameter is bound to an attribute of the event or to a constant. If an attribute is null, the guard is not asked,
    and refuses. The name identifies the guard and its arguments, and contains none of the constants.
    """

    __slots__ = ("_attributes", "_constants", "guard")

    #: the name that brokers know
    guard: str
    _attributes: Mapping[str, AttributeId]
    _constants: Mapping[str, Value]

    def __new__(
        cls, guard: str, attributes: Mapping[str, AttributeId], constants: Mapping[str, Value] = MappingProxyType({})
    ) -> "BoundGuard":
        """Bind the parameters of a guard."""
        told: list[SExp] = [guard.encode()]
        told += [(b"attribute", name.encode(), one.encode()) for name, one in sorted(attributes.items())]
        told += [(b"constant", name.encode(), value_to_sexp(value)) for name, value in sorted(constants.items())]
        names = ", ".join(sorted((*attributes, *constants)))
        self = super().__new__(cls, f"{guard}({names})#{digest(canonical(tuple(told))).hex()[:16]}")
        self.guard, self._attributes, self._constants = guard, attributes, constants
        return self

    def bind(self, ask: Guard) -> Guard:
        """Return a guard over the values of events from one over the values of parameters."""
        attributes, constants = self._attributes, self._constants

        def bound(values: Values, environment: Environment) -> bool:
            found = {name: values.get(attribute) for name, attribute in attributes.items()}
            if None in found.values():
                return False
            return ask(MappingProxyType({**constants, **found}), environment)

        return bound


OnProblem: TypeAlias = Callable[[str, tuple[str, ...]], None]
"""Receives the error code that disabled a branch, and the branch's credentials. For logs and metrics."""


def ignore_problem(_code: str, _because: tuple[str, ...]) -> None:
    """Ignore it."""


OnGuard: TypeAlias = Callable[[str, str, bool | None], None]
"""Receives an event's id, the name of a guard, and its result: None if it failed or is not known. For logs."""


def ignore_guard(_event: str, _guard: str, _held: bool | None) -> None:
    """Ignore it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Context for compiling restrictions: guards by name, and the environment's schema."""

    guards: Mapping[str, Guard] = field(default_factory=dict)
    environment: Schema = field(default_factory=environment_schema)
    on_problem: OnProblem = ignore_problem
    on_guard: OnGuard = ignore_guard

    def guard(self, name: str) -> Guard | None:
        """Return a guard's function, if it is known."""
        if isinstance(name, BoundGuard):
            ask = self.guards.get(name.guard)
            return None if ask is None else name.bind(ask)
        return name.ask if isinstance(name, OwnGuard) else self.guards.get(name)


class _Gate:
    """Test whether one branch applies to the values of an event and the environment."""

    def __init__(self, branch: Branch, condition: Selector, event_type: EventType, rules: Rules) -> None:
        schema: Schema = {str(a.id): a.spec for a in event_type.attributes}
        condition.check(schema, missing="null")
        branch.when.condition.check(rules.environment)
        self.because = branch.because
        self._on_problem = rules.on_problem
        self._on_guard = rules.on_guard
        self._condition = condition
        self._where = None if condition == TRUE else compile_selector(condition)
        dynamic = branch.when.condition
        self._dynamic = None if dynamic == TRUE else compile_selector(dynamic, rules.environment)
        self._starts, self._ends = branch.when.validity.starts, branch.when.validity.ends
        self._dated = self._starts is not None or self._ends is not None
        if branch.when.validity.online:
            raise RefusedError("guard.online-test", "a branch still has on-line tests without a result")
        self._guards = [(name, rules.guard(name)) for name in sorted(branch.guards)]
        #: whether the answer depends on the event
        self.reads = self._where is not None or bool(self._guards)
        self.always = self._where is None and self._dynamic is None and not self._dated and not self._guards

    def __call__(self, values: Values, environment: Environment, event: str = "") -> bool:
        try:
            if self._dated and not self._in_time(environment):
                return self._problem("guard.not-valid-now")
            if self._dynamic is not None and self._dynamic(environment) is not True:
                return False
            if self._where is not None and self._where(values) is not True:
                return False
        except EvaluationError as error:
            return self._problem(error.code)
        return not self._guards or self._ask(values, environment, event)

    def of_rows(self, layout: Sequence[str]) -> Callable[[Row, Environment], bool]:
        """Return the same for rows with values of these attributes."""
        if self._dated or self._dynamic is not None or self._guards or self._where is None:
            return lambda row, environment: self(_without_nulls(layout, row), environment, row[0])
        where = compile_for_rows(self._condition, {name: place for place, name in enumerate(layout, _FIXED)})

        def holds(row: Row, _environment: Environment) -> bool:
            try:
                return where(row) is True
            except EvaluationError as error:
                return self._problem(error.code)

        return holds

    def _in_time(self, environment: Environment) -> bool:
        now = environment.get("time")
        if not isinstance(now, datetime) or now.utcoffset() is None:
            return False
        return (self._starts is None or self._starts <= now) and (self._ends is None or now <= self._ends)

    def _ask(self, values: Values, environment: Environment, event: str) -> bool:
        # A guard answers; it changes nothing.
        values, environment = MappingProxyType(values), MappingProxyType(environment)
        for name, guard in self._guards:
            held, problem = None, ""
            try:
                held = None if guard is None else guard(values, environment) is True
                problem = "guard.unknown" if guard is None else ""
            except Exception:  # noqa: BLE001  # a black box may raise anything, and whatever raises refuses
                problem = "guard.failed"
            try:
                self._on_guard(event, name, held)
            except PenstockError as error:
                # What cannot be recorded is not allowed.
                return self._problem(error.code)
            if held is not True:
                return self._problem(problem) if problem else False
        return True

    def _problem(self, code: str) -> bool:
        self._on_problem(code, self.because)
        return False


#: the columns of a row before the values: the id and the time
_FIXED: Final = 2
#: loops that a delivery remembers, of each kind
_LOOPS: Final = 64


def _without_nulls(layout: Sequence[str], row: Row) -> dict[str, Scalar]:
    return {name: value for name, value in zip(layout, row[_FIXED:], strict=True) if value is not None}


class Delivery:
    """Mask the events of one type for one subscriber, in its own version.

    `selector` is the subscriber's own filter, over the names of that version. Raises `SelectorError` when it does
    not fit the type, `RefusedError` (`guard.online-test`) and `MalformedError` for a restriction that cannot be
    enforced.
    """

    def __init__(
        self,
        restriction: Restriction,
        event_type: EventType,
        selector: Selector = TRUE,
        rules: Rules | None = None,
    ) -> None:
        rules = rules or Rules()
        expect(restriction, Restriction, "a delivery", "`decide(…).require()` gives one")
        expect(selector, Selector, "the filter of a delivery", "`parse(text)` gives one")
        selector.check(event_type.schema)
        self.event_type = event_type
        self.restriction = restriction.for_type(event_type, Right.SUBSCRIBE)
        self._selector = None if selector == TRUE else compile_selector(selector, event_type.schema)
        self._question = selector
        self._loops: dict[int, tuple[EventType, ShowRows]] = {}
        self._arrival_loops: dict[tuple[TypeKey, tuple[str, ...]], ShowRows] = {}
        self._on_problem = rules.on_problem
        self._nulls: dict[str, Scalar] = {a.name: None for a in event_type.attributes}
        #: the types that were last seen to be this one or below it
        self._below: tuple[object, object] = (None, None)
        self._branches = [
            (
                _Gate(branch, branch.holds_where(), event_type, rules),
                shower(attribute for attribute in event_type.attributes if branch.shows(attribute.id)),
                branch,
            )
            for branch in self.restriction.branches
        ]

    def __call__(self, event: TransitEvent, environment: Environment) -> Event | None:
        """Return the event as the subscriber may see it, or None if it may not see it or its filter rejects it.

        Raises `MalformedError` (`event.type`) for an event of another type.
        """
        event_type = self.event_type
        if event.key is not self._below[0] or event.ancestors is not self._below[1]:
            if event.key != event_type.key and event_type.key not in event.ancestors:
                raise MalformedError("event.type", f"an event of `{event.key.name}` is no `{event_type.name.name}`")
            self._below = event.key, event.ancestors
        values = event.values
        shown: dict[str, Scalar] | None = None
        for gate, show, branch in self._branches:
            if branch.only is not None and event.key not in branch.only:
                continue
            if gate.always or gate(values, environment, event.id):
                if shown is None:
                    shown = self._nulls.copy()
                show(values, shown)
        if shown is None:
            return None
        if self._selector is not None:
            try:
                if self._selector(shown) is not True:
                    return None
            except EvaluationError as error:
                self._on_problem(error.code, ())
                return None
        return Event(event_type, MappingProxyType(shown), event.id, event.time)

    def for_rows(self, source: EventType) -> ShowRows:
        """Return a loop that shows rows of one version of a type, whose values fit it, as calling this shows an event.

        Raises `MalformedError` (`event.type`) for another type.
        """
        known = self._loops.get(id(source))
        if known is None:
            if self.event_type.key not in (source.key, *source.ancestors):
                raise MalformedError("event.type", f"`{source.key.name}` is not a `{self.event_type.name.name}`")
            if len(self._loops) >= _LOOPS:
                self._loops.clear()
            layout = [str(attribute.id) for attribute in source.attributes]
            known = self._loops[id(source)] = source, self._loop(source.key, layout, source)
        return known[1]

    def for_arrivals(self, events: EventRows) -> ShowRows:
        """Return a loop that shows rows like these, whose values nobody has checked, as calling this shows an event.

        Raises `MalformedError` (`event.type`) for another type.
        """
        if self.event_type.key not in (events.key, *events.ancestors):
            raise MalformedError("event.type", f"`{events.key.name}` is not a `{self.event_type.name.name}`")
        form = events.key, events.layout
        known = self._arrival_loops.get(form)
        if known is None:
            if len(self._arrival_loops) >= _LOOPS:
                self._arrival_loops.clear()
            known = self._arrival_loops[form] = self._loop(*form, None)
        return known

    def _loop(self, key: TypeKey, layout: Sequence[str], source: EventType | None) -> ShowRows:
        """Generate the loop: which branches apply, what they show, and whether the reader's filter accepts it.

        The values fit `source`; without it, each of them is looked at.
        """
        known: dict[str, Any] = {}
        tests: dict[int, str] = {}
        branches = [(g, b) for g, _, b in self._branches if b.only is None or key in b.only]
        for number, (gate, _) in enumerate(branches):
            if not gate.always:
                known[f"gate{number}"] = gate.of_rows(layout)
                tests[number] = f"  h{number} = gate{number}(row, environment)"
        places = {name: place for place, name in enumerate(layout, _FIXED)}
        cells: list[_Cell] = []
        for attribute in self.event_type.attributes:
            showing = [number for number, (_, branch) in enumerate(branches) if branch.shows(attribute.id)]
            place = places.get(attribute.id) if showing else None
            shown = " or ".join(f"h{number}" for number in showing) if all(one in tests for one in showing) else ""
            cells.append(_HIDDEN if place is None else _cell(attribute, place, source, shown, known))
        row = f"[{', '.join(('row[0]', 'row[1]', *(cell.text for cell in cells)))}]"
        if [cell.place for cell in cells] == [*places.values()]:
            # The row itself, unless a value does not fit.
            fits = " and ".join(cell.fits for cell in cells if cell.fits)
            row = f"row if {fits} else {row}" if fits else "row"
        if not branches:
            return lambda _rows, _environment: []
        if not tests and self._selector is None and source is not None:
            return _compiled(["def show(rows, environment):", f" return [{row} for row in rows]"], known)  # type: ignore[no-any-return]  # so
        lines = ["def show(rows, environment):", " found = []", " for row in rows:"]
        if source is None:
            lines.append(f"  {', '.join(['_', '_', *(f'v{place}' for place in places.values())])} = row")
        lines += tests.values()
        if len(tests) == len(branches):
            lines += [f"  if not ({' or '.join(f'h{number}' for number in tests)}):", "   continue"]
        lines.append(f"  seen = {row}")
        if self._selector is not None:
            known["wanted"] = self._wanted()
            lines += ["  if not wanted(seen):", "   continue"]
        return _compiled([*lines, "  found.append(seen)", " return found"], known)  # type: ignore[no-any-return]  # so

    def _wanted(self) -> Callable[[Row], bool]:
        """Return whether the reader's own selector wants a row as it is shown."""
        places = {attribute.name: place for place, attribute in enumerate(self.event_type.attributes, _FIXED)}
        holds = compile_for_rows(self._question, places, self.event_type.schema)

        def wanted(row: Row) -> bool:
            try:
                return holds(row) is True
            except EvaluationError as error:
                self._on_problem(error.code, ())
                return False

        return wanted


class _Cell(NamedTuple):
    """The expression for one value that a reader sees."""

    text: str = "None"
    #: where it stands in the row, if it is shown as it is
    place: int | None = None
    #: the test that it has to pass for that
    fits: str = ""


_HIDDEN: Final = _Cell()


def _cell(attribute: Attribute, place: int, source: EventType | None, shown: str, known: dict[str, Any]) -> _Cell:
    """Return the expression for the value at a place, which is shown if `shown` is empty or true."""
    value = text = f"v{place}" if source is None else f"row[{place}]"
    fits = ""
    if source is None:
        test = _bind(known, place, attribute, _mended).replace("value", value)
        fits = f"({value} is None or {test})"
        text = f"({value} if {fits} else mended{place}({value}))"
    elif source.by_id[attribute.id].spec != attribute.spec:
        known[f"fit{place}"] = _mended(attribute)
        text = f"fit{place}({value})"
    if shown:
        return _Cell(f"({text} if {shown} else None)")
    return _Cell(text, place if fits or text == value else None, fits)


_Forced: TypeAlias = tuple[tuple[AttributeId, Value], ...]
_Group: TypeAlias = tuple[_Forced, list[tuple[_Gate, Branch]]]


class Publication:
    """Restrict the events of one type for one publisher, in its own version.

    Branches that force the same values form a group. An event goes through the groups whose forced values it states
    or leaves null. Where it contradicts all of them and there is one group, the values are forced all the same
    (paper 5, section 5.2.2); where there are several, which one is meant would be a guess, and the event is refused.

    A branch holds if it does so on what it lets through itself, and on what all branches together let through. A value
    forced on an attribute that this version lacks is passed over; a branch that may not publish what it forces never
    holds (`guard.forced-unlisted`). Raises `MalformedError`, `RefusedError` (`guard.online-test`) for a restriction
    that cannot be enforced.
    """

    def __init__(self, restriction: Restriction, event_type: EventType, rules: Rules | None = None) -> None:
        rules = rules or Rules()
        expect(restriction, Restriction, "a publication", "`decide(…).require()` gives one")
        self.event_type = event_type
        self.restriction = restriction.for_type(event_type, Right.PUBLISH)
        groups: dict[tuple[_Forced, tuple[type, ...]], _Group] = {}
        for branch in self.restriction.branches:
            if branch.only is not None and event_type.key not in branch.only:
                continue
            gate = _Gate(branch, branch.where, event_type, rules)
            try:
                check_forced(branch, event_type)
            except RefusedError as error:
                rules.on_problem(error.code, branch.because)
                continue
            forced = tuple((a, v) for a, v in branch.forced if a in event_type.by_id)
            key = forced, tuple(type(value) for _, value in forced)
            groups.setdefault(key, (forced, []))[1].append((gate, branch))
        self._groups = list(groups.values())
        self._stated = stater(event_type.attributes)
        self._passed: State | None = None
        #: the loop for rows, where nothing depends on the event or the moment
        self.admit: AdmitRows | None = None
        match self._groups:
            case [((), [(gate, branch)])] if gate.always:
                self._passed = stater(event_type.attributes, lambda attribute: branch.shows(attribute.id))
                self.admit = admitter(event_type.attributes, lambda attribute: branch.shows(attribute.id))

    @property
    def groups(self) -> tuple[tuple[tuple[tuple[AttributeId, Value], ...], tuple[Branch, ...]], ...]:
        """The branches that can apply, by the values they force, for compilers to other engines."""
        return tuple((forced, tuple(branch for _, branch in branches)) for forced, branches in self._groups)

    def __call__(self, event: Event, environment: Environment) -> TransitEvent:
        """Return the event as it may travel.

        Raises `RefusedError`: `guard.not-permitted` when no branch holds, `guard.ambiguous-forced`; `MalformedError`:
        `event.type` for an event of another type or version, `value.*` for a value that does not fit it.
        """
        event_type = self.event_type
        # The client wrote the event's type. It must be ours, or the client could choose the receivers by its ancestors.
        if event.type is not event_type and event.type != event_type:
            raise MalformedError("event.type", f"the advertisement is for `{event_type.name}`")
        final: dict[str, Scalar] | None
        if self._passed is not None:
            final = self._passed(event.values)
        else:
            final = self._settle(list(self._candidates(event, environment)), environment, event.id)
        if final is None:
            raise RefusedError(
                "guard.not-permitted",
                f"no right to publish this event of `{event_type.name.name}`",
                hint="its values, or the current time, are outside of what the credentials permit",
            )
        return TransitEvent(event_type.key, event_type.ancestors, MappingProxyType(final), event.id, event.time)

    def _candidates(self, event: Event, environment: Environment) -> Iterator[tuple[_Gate, dict[str, Scalar]]]:
        """Yield the part of an event that each branch permits, if the branch applies to that part."""
        stated = self._stated(event.values)
        for forced, branches in self._chosen(stated):
            for gate, branch in branches:
                candidate: dict[str, Scalar] = {a: v for a, v in stated.items() if branch.shows(a)}
                candidate.update(forced)
                if gate.always or gate(candidate, environment, event.id):
                    yield gate, candidate

    def _settle(
        self, held: list[tuple[_Gate, dict[str, Scalar]]], environment: Environment, event: str
    ) -> dict[str, Scalar] | None:
        """Return the union of the branches' parts; a branch that does not apply to the union is dropped.

        Candidates agree where they overlap, so that one as large as the whole is the whole.
        """
        while held:
            final: dict[str, Scalar] = {}
            for _, candidate in held:
                final.update(candidate)
            kept = [
                (gate, candidate)
                for gate, candidate in held
                if not gate.reads or len(candidate) == len(final) or gate(final, environment, event)
            ]
            if len(kept) == len(held):
                return final
            held = kept
        return None

    def _chosen(self, stated: Mapping[AttributeId, Scalar]) -> list[_Group]:
        if len(self._groups) == 1:
            return self._groups
        agreeing = [group for group in self._groups if all(_agrees(stated.get(a), v) for a, v in group[0])]
        merged: dict[AttributeId, Value] = {}
        for forced, _ in agreeing:
            for attribute, value in forced:
                if not _agrees(merged.setdefault(attribute, value), value):
                    raise _ambiguous(self.event_type)
        if not agreeing and self._groups:
            raise _ambiguous(self.event_type)
        return agreeing


def _agrees(stated: Scalar, forced: Value) -> bool:
    return stated is None or (kind_of(stated) is kind_of(forced) and stated == forced)


def _ambiguous(event_type: EventType) -> RefusedError:
    return RefusedError(
        "guard.ambiguous-forced",
        f"several rights to publish `{event_type.name.name}` force different values, and the event does not fit one",
        hint="set the values of one of these rights",
    )
