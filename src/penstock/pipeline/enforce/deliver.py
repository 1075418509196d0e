"""Delivery to a whole set of readers in one pass over the events.

The programs that show an event are found (`search`), each with the words of bits (`restrict`) that mask its attributes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.guard.restriction import Branch, Restriction
from penstock.model.types import EventType
from penstock.model.values import Kind
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.enforce.programs import Program, programs_of, table, unfiltered
from penstock.pipeline.enforce.restrict import Viewer, in_environment
from penstock.pipeline.enforce.search import QUESTION, Finder, SearchQuestion
from penstock.pipeline.frames.columns import ColumnSource
from penstock.pipeline.frames.frames import metadata, quoted, transit_sources
from penstock.pipeline.ingest.event_frames import TYPE

PROGRAM: Final = "@program"
SUBSCRIBER: Final = "@subscriber"
_LISTED: Final = 10
"""Subscribers that an error lists, at most."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The deliveries to all readers of a policy: rows by program, with attributes under their ids.

    Readers who share a program share its rows; `for_subscriber` is a view on them in the reader's own version, and
    `by_subscriber` repeats them for each reader. `without_rights` names the subscribers who may see nothing.
    """

    rows: DataFrame
    programs: tuple[Program, ...]
    without_rights: tuple[str, ...] = ()

    def for_subscriber(self, name: str) -> DataFrame:
        """Return one reader's events, under the names of its version.

        Raises `RefusedError` (`pipeline.no-rights`), `MalformedError` (`pipeline.unknown-subscriber`).
        """
        for program in self.programs:
            if name in program.readers:
                own = [quoted(a.id).alias(a.name) for a in program.event_type.attributes]
                return self.rows.where(quoted(PROGRAM) == program.number).select(*metadata(), *own)
        readers = [reader for program in self.programs for reader in program.readers]
        raise no_view(name, readers, self.without_rights)

    def by_subscriber(self) -> DataFrame:
        """Return a row for each reader and event, with the reader's name in `@subscriber`."""
        pairs = [(program.number, reader) for program in self.programs for reader in program.readers]
        kinds = {PROGRAM: Kind.INTEGER, SUBSCRIBER: Kind.STRING}
        readers = table(self.rows.sparkSession, kinds, pairs)
        readers = readers.select(quoted(PROGRAM).cast("int").alias(PROGRAM), SUBSCRIBER)
        return self.rows.join(F.broadcast(readers), PROGRAM)


def no_view(name: str, readers: Iterable[str], without_rights: Iterable[str]) -> PenstockError:
    """Return the error for a subscriber without a view: it has no rights, or there is none of that name."""
    refused = [*without_rights]
    if name in refused:
        return RefusedError(
            "pipeline.no-rights",
            f"subscriber `{name[:80]}` has no right to receive anything of its type",
            hint="`penstock explain` says what is missing",
        )
    known = [*readers, *refused]
    near = get_close_matches(name, known, 3)
    others = f"did you mean {' or '.join(f'`{one[:80]}`' for one in near)}?" if near else _listed(sorted(known))
    return MalformedError(
        "pipeline.unknown-subscriber",
        f"the policy has no subscriber `{name[:80]}`",
        hint=f"{others} Subscribers are listed in the policy file",
    )


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "it has none."
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return f"there are: {', '.join(name[:80] for name in names[:_LISTED])}{more}."


def is_known(types: Sequence[EventType]) -> Column:
    """Say of which events `@type` is one of some versions; never null."""
    return F.coalesce(quoted(TYPE).isin(*(str(one.name) for one in types)), F.lit(False))


class ByType:
    """Asks of each event whether it is of a type that a branch is about, as if by guards: one for each set of types.

    Where a branch is about all types nothing is asked: that no event is of another one is seen to before (`is_known`).
    """

    def __init__(self, types: Sequence[EventType], *, told: bool) -> None:
        self._types = types
        self._told = told
        self._asked: dict[frozenset[str], str] = {}

    def program(self, program: Program) -> Program:
        """Return a program whose branches hold for events of what its reader subscribed to, as far as they say."""
        branches = tuple(self._branch(branch, program.event_type) for branch in program.restriction.branches)
        return replace(program, restriction=Restriction(branches))

    def _branch(self, branch: Branch, reader: EventType) -> Branch:
        meant = frozenset(str(one.name) for one in self._types if _is_about(branch, reader, one))
        if len(meant) == len(self._types) or (branch.only is None and not self._told):
            return replace(branch, only=None)
        guard = self._asked.setdefault(meant, f"@of {len(self._asked)}")
        return replace(branch, only=None, guards=branch.guards | {guard})

    def guards(self) -> dict[str, Column]:
        """Return the columns of what was asked; where no event says of which type it is, none holds."""
        if not self._told:
            return {}
        return {name: quoted(TYPE).isin(*sorted(meant)) for meant, name in self._asked.items() if meant}


def _is_about(branch: Branch, reader: EventType, event_type: EventType) -> bool:
    below = reader.key in (event_type.key, *event_type.ancestors)
    return below and (branch.only is None or event_type.key in branch.only)


def deliver(  # noqa: PLR0913  # events, and who may see them; the rest has defaults
    events: DataFrame,
    types: Sequence[EventType],
    policy: PipelinePolicy,
    *,
    guards: Mapping[str, Column] | None = None,
    facts: Mapping[str, ColumnSource] | None = None,
    own_filters: bool = True,
) -> Delivered:
    """Deliver a frame of transit events of some types to the subscribers of a policy.

    `types` are the versions whose attributes the frame has; of which of them an event is, `@type` says, without which
    all of them count as what each subscriber reads. Events of any other version go to nobody. `guards` has a boolean
    column for each guard whose results the log holds; a guard that is not there never holds. `facts` are columns that
    tell of each event what the policy says once for all. Without `own_filters`, return what the rights of those readers
    show who have a filter of their own, before that is asked. Raises `SelectorError` for a filter that does not fit.
    """
    told = TYPE in events.columns
    events = events.where(is_known(types)) if told else events
    by_type = ByType(types, told=told)
    asked = programs_of(policy)
    programs = tuple(by_type.program(program) for program in (asked if own_filters else unfiltered(asked)))
    sources = transit_sources(types)
    events, environment = in_environment(events, policy, facts)
    viewer = Viewer(sources, environment, {**(guards or {}), **by_type.guards()})
    finder = Finder(events, viewer, lambda parts: parts[0][0] != 0)
    found = finder.find(SearchQuestion(program.number, ((program,),)) for program in programs)
    view = [quoted(name) for part in finder.words() for name in part]
    masked = [viewer.value(name, view).alias(name) for name in sources]
    reading = {reader for program in programs for reader in program.readers}
    without = tuple(one.name for one in policy.subscribers if one.name not in reading)
    return Delivered(found.select(quoted(QUESTION).alias(PROGRAM), *metadata(), *masked), programs, without)
