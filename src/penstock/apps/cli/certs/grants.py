"""Read the right, the subject and the validity of a certificate from the command line, and issue it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import click

from penstock.apps.cli.shared.commands import CommandAnswer, option, option_class
from penstock.apps.cli.shared.credentials import need_type
from penstock.apps.cli.shared.describe import Wording, instant_text, statement_data
from penstock.apps.cli.shared.events import check_fits, given_twice, parse_value, split_pair
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import (
    RIGHT,
    WHO,
    Duration,
    KeyOptions,
    NamesOption,
    OutputFile,
    TypeFileOptions,
)
from penstock.apps.cli.shared.session import CommandSession, Warned, warn
from penstock.codec.sexp import parse as parse_sexp
from penstock.codec.sexp import transport
from penstock.errors import MalformedError, did_you_mean
from penstock.guard import ENVIRONMENT
from penstock.model.instants import parse_end, parse_instant
from penstock.model.names import AttributeId, check_token
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Kind, Value, check_value
from penstock.selector import parse as parse_selector
from penstock.trust.capabilities import (
    DECISION,
    EVENT_TYPE,
    NETWORK,
    BoundSelector,
    DecisionRight,
    Right,
    decision_tag,
    event_tag,
    flags,
    network_tag,
    wrong_right,
)
from penstock.trust.certificates import Authorisation, Name, Statement, Subject, Threshold, issue
from penstock.trust.credentials import Credentials
from penstock.trust.limits import STAMP_PERIOD
from penstock.trust.statements import OnlineKind, OnlineTerms
from penstock.trust.tags import Set, Tag, parse_tag
from penstock.trust.validity import DEFAULT_LIFETIME, OnlineTest, Validity

#: the meaning of a TIME that is a date only
MIDNIGHT: Final = "a date alone is 00:00 UTC of that day"
LAST_SECOND: Final = "a date alone includes that day, until 23:59:59 UTC"
_VOCABULARY: Final = (NETWORK, EVENT_TYPE, DECISION)
_RIGHTS: Final = click.Choice([*RIGHT.choices, *(right.value for right in DecisionRight)])


@option_class
class RightOptions:
    """Options for the right that a certificate grants."""

    network: str | None = option(
        "--network",
        metavar="OWNER/NAME",
        help="Grant rights on this network; * stands for all, or for all of one owner.",
    )
    type_name: str | None = option(
        "--type", metavar="OWNER/PATTERN", help="Grant rights on these event types; * matches any part of the name."
    )
    decisions: str | None = option(
        "--decisions",
        metavar="OWNER/TYPE[:ID]",
        help="Grant rights on decisions about these resources: decide, ask; * matches any part.",
    )
    tag: str | None = option("--tag", metavar="SEXP", help="Grant a right of another vocabulary, as an S-expression.")
    of_type: TypeFileOptions
    version: str | None = option(
        "--version", metavar="VERSION", help="Grant rights on this version of the type only (default: all)."
    )
    rights: tuple[str, ...] = option("--right", multiple=True, type=_RIGHTS, help="Grant this right. Can be repeated.")
    all_rights: bool = option("--all-rights", is_flag=True, help="Grant every right.")
    attributes: tuple[str, ...] = option(
        "--attribute",
        multiple=True,
        metavar="NAME|ID",
        help="Grant this attribute only (default: all). Can be repeated.",
    )
    forced: tuple[str, ...] = option(
        "--set",
        multiple=True,
        metavar="NAME=VALUE",
        help="Force this value of an attribute: publishers' events are given it, and subscribers receive only events"
        " that have it. Can be repeated.",
    )
    where: tuple[str, ...] = option(
        "--where",
        multiple=True,
        metavar="SELECTOR",
        help="Grant only events that match this selector (default: all). Can be repeated.",
    )
    when: tuple[str, ...] = option(
        "--when",
        multiple=True,
        metavar="CONDITION",
        help="Grant only while the environment matches this condition. Can be repeated.",
    )

    hide_source: bool = option("--hide-source", is_flag=True, help="Do not show subscribers who published an event.")

    def to_tag(self, names: NameBook, event_type: EventType | None) -> Tag:
        """Return the right as a tag.

        Raises `MalformedError` (`cli.resource`, `cli.rights`, `cli.type-file` and what the parts raise) and
        `SelectorError`.
        """
        resources = [self.network, self.type_name or event_type, self.tag, self.decisions]
        if sum(resource is not None for resource in resources) != 1:
            raise MalformedError(
                "cli.resource",
                "a certificate is about one thing: a network, event types, decisions, or a tag of your own",
                hint="give one of --network, --type (or --type-file), --decisions and --tag",
            )
        if self.tag is not None:
            self._only("--tag", self.version, self.rights, self.all_rights, *self._terms())
            tag = parse_tag(parse_sexp(self.tag.encode("utf-8", "surrogateescape")))
            if isinstance(tag, Set) and not any(tag.members()):
                raise MalformedError(
                    "capability.empty", "the tag grants no right", hint="an empty set contains nothing"
                )
            return tag
        if self.decisions is not None:
            self._only("--decisions", self.version, *self._terms())
            return self._decision_tag(names, self.decisions)
        rights = self._rights()
        if self.network is not None:
            self._only("--network", self.version, *self._terms())
            owner, name = names.owned(self.network, "network")
            return network_tag(owner, name, rights)
        return self._type_tag(names, event_type, rights)

    def _decision_tag(self, names: NameBook, written: str) -> Tag:
        owner, slash, resource = written.partition("/")
        kind, colon, name = resource.partition(":")
        if not slash or not owner or not kind or (colon and not name):
            raise MalformedError(
                "name.malformed", f"`{written[:80]}` is not OWNER/TYPE[:ID]", hint="such as hospital/record:*"
            )
        self._check_rights()
        if not set(self.rights) <= set(DecisionRight):
            raise wrong_right()
        return decision_tag(
            None if owner == "*" else names.principal(owner),
            None if kind == "*" else kind,
            None if name in ("", "*") else name,
            None if self.all_rights else map(DecisionRight, self.rights),
        )

    def doubts(self) -> Iterator[Warned]:
        """Yield warnings about the conditions: facts that not every broker knows."""
        for text in self.when:
            for fact in sorted(parse_selector(text).attributes - ENVIRONMENT.keys()):
                yield Warned(
                    "capability.unknown-fact",
                    f"only brokers that know `{fact}` can evaluate the condition; for others the right does not count",
                )

    def _type_tag(self, names: NameBook, event_type: EventType | None, rights: list[Right] | None) -> Tag:
        if self.type_name is not None:
            owner, name = names.owned(self.type_name, "type")
        else:
            known = need_type(event_type, "the right").name
            owner, name = known.owner, known.name
        if self.version is not None:
            check_token(self.version, "version")
        forced: dict[AttributeId, Value] = {}
        for written in self.forced:
            attribute, value = self._force(written, names, event_type)
            if forced.setdefault(attribute, value) != value:
                raise given_twice(f"--set {written.partition('=')[0]}", "an attribute has one forced value")
        listed = [attribute_id(written, names, event_type) for written in self.attributes]
        for index, attribute in enumerate(listed):
            if attribute in listed[:index]:
                raise given_twice(f"--attribute {self.attributes[index]}", "name each attribute once")
        for text in self.when:
            # Facts that every broker knows have a kind; facts that only some of them know are not checked here.
            parse_selector(text).check(ENVIRONMENT, missing="null")
        return event_tag(
            owner,
            name,
            self.version,
            rights,
            attributes=listed or None,
            forced=forced,
            where=[BoundSelector.of(text, need_type(event_type, "a forced selector")) for text in self.where],
            when=self.when,
            source=not self.hide_source,
        )

    def _force(self, written: str, names: NameBook, event_type: EventType | None) -> tuple[AttributeId, Value]:
        name, value = split_pair(written, "ATTRIBUTE=VALUE")
        known = need_type(event_type, "a forced value")
        found = attribute_id(name, names, event_type)
        if found not in known.by_id:
            raise MalformedError(
                "type.unknown-attribute",
                f"`{known.name.name}` has no attribute `{name}`",
                hint=did_you_mean(name, known.by_name, f"it has: {', '.join(known.by_name)}"),
            )
        spec = known.by_id[found].spec
        read = parse_value(spec.kind, value, name)
        check_fits(name, spec, read)
        return found, read

    def _rights(self) -> list[Right] | None:
        self._check_rights()
        if not set(self.rights) <= set(Right):
            raise wrong_right()
        return None if self.all_rights else [Right(right) for right in self.rights]

    def _check_rights(self) -> None:
        if bool(self.rights) is self.all_rights:
            raise MalformedError(
                "cli.rights",
                "no right is given",
                hint="give --right for each right, or --all-rights",
            )

    def _terms(self) -> tuple[object, ...]:
        return (self.attributes, self.forced, self.where, self.when, self.hide_source)

    def _only(self, option: str, *others: object) -> None:
        if any(others):
            raise MalformedError(
                "cli.resource",
                f"with {option} a certificate cannot carry versions, attributes, values or selectors"
                + (" or rights" if option == "--tag" else ""),
                hint="these belong to rights on event types",
            )


def doubts(statement: Statement, now: datetime) -> Iterator[Warned]:
    """Yield warnings about a certificate before it is issued that the library does not give."""
    ends = statement.validity.ends
    if ends is not None and ends < now:
        yield Warned("capability.already-over", f"the certificate has already expired, at {instant_text(ends)}")
    if isinstance(statement, Authorisation):
        tags = statement.tag.members() if isinstance(statement.tag, Set) else [statement.tag]
        if any(isinstance(tag, bytes) or (isinstance(tag, tuple) and tag[0] not in _VOCABULARY) for tag in tags):
            yield Warned(
                "capability.other-vocabulary",
                "the tag is not a right on networks, event types or decisions, and grants none",
            )


def attribute_id(written: str, names: NameBook, event_type: EventType | None) -> AttributeId:
    """Return the id of an attribute that is given by its id or by its name in the type."""
    if "#" in written:
        return names.attribute(written)
    return need_type(event_type, f"attribute `{written[:80]}`").attribute(written).id


def _subject() -> MalformedError:
    return MalformedError(
        "cli.subject",
        "a certificate is for one subject",
        hint="give --to WHO, --to-name NAME (of --to WHO, else of your own), or --threshold K with --member WHO …",
    )


def check_comment(comment: str) -> str:
    """Return a comment that can be stored. Raises `MalformedError` (`value.text`)."""
    check_value(Kind.STRING, comment)
    return comment


# ----------------------------------------------------------------------------------------------------------------------
# Issue a certificate: the key, the subject, the validity, and the output.


State: TypeAlias = Callable[[Principal, Subject], Statement]
"""The content of a certificate, given its issuer and subject."""


_FROM: Final = f"Let it be valid from this time on (default: immediately); {MIDNIGHT}."
_UNTIL: Final = "Let it be valid until this time (default: {default}); " + f"{LAST_SECOND}."


@option_class
class PeriodOptions:
    """Options for the validity period of a rule."""

    not_before: str | None = option("--not-before", metavar="TIME", help=_FROM)
    not_after: str | None = option("--not-after", metavar="TIME", help=_UNTIL.format(default="without expiry"))
    days: int | None = option(
        "--days", type=click.IntRange(min=1), metavar="N", help="Let it be valid for this many days."
    )

    def validity(self, now: datetime) -> Validity:
        """Return the period. Raises `MalformedError` (`cli.validity`, `date.malformed`)."""
        begin = None if self.not_before is None else parse_instant(self.not_before)
        end = None if self.not_after is None else parse_end(self.not_after)
        if self.days is not None:
            if end is not None:
                raise MalformedError("cli.validity", "--days and --not-after both say when the period ends")
            try:
                end = ((begin or now) + timedelta(days=self.days)).replace(microsecond=0)
            except OverflowError:
                raise MalformedError("cli.validity", f"{self.days} days from then is not a date") from None
        return Validity.between(begin, end)


@option_class
class LifetimeOptions:
    """Options for the validity period of a certificate: a year, unless its issuer says otherwise."""

    not_before: str | None = option("--not-before", metavar="TIME", help=_FROM)
    not_after: str | None = option("--not-after", metavar="TIME", help=_UNTIL.format(default="see --days"))
    days: int | None = option(
        "--days",
        type=click.IntRange(min=1),
        metavar="N",
        help=f"Let it be valid for this many days (default: {DEFAULT_LIFETIME.days}).",
    )
    no_expiry: bool = option("--no-expiry", is_flag=True, help="Let it never expire. Only a revocation ends it then.")

    def validity(self, now: datetime) -> Validity:
        """Return the period. Raises as `PeriodOptions.validity`."""
        if self.no_expiry and (self.days is not None or self.not_after is not None):
            raise MalformedError("cli.validity", "--no-expiry and another option both say when the period ends")
        ends = self.no_expiry or self.not_after is not None
        days = self.days if ends or self.days is not None else DEFAULT_LIFETIME.days
        return PeriodOptions(not_before=self.not_before, not_after=self.not_after, days=days).validity(now)

    def warnings(self) -> Iterator[Warned]:
        """Yield the warning about a certificate that never expires."""
        if self.no_expiry:
            yield Warned("cert.no-expiry", "the certificate never expires; revoke it when the right should end")


_PAUSE: Final = Duration(STAMP_PERIOD / 1_000, above=0)


@option_class
class OnlineOptions:
    """Options for on-line tests: the statements without which a certificate is not valid."""

    kinds: tuple[str, ...] = option(
        "--online",
        multiple=True,
        type=click.Choice([kind.value for kind in OnlineKind]),
        help="Let it be valid only with such statements: not in a revocation list (crl), listed as valid (reval), "
        "asked each time (one-time), or not revoked while heartbeats come (active). Can be repeated.",
    )
    signer: str | None = option(
        "--online-signer", **WHO, help="Let this principal sign the statements (default: you, the issuer)."
    )
    uris: tuple[str, ...] = option(
        "--online-uri", multiple=True, metavar="URI", help="Say where statements can be fetched. Can be repeated."
    )
    recheck: float = option(
        "--recheck",
        type=_PAUSE,
        default="1m",
        show_default=True,
        metavar="DURATION",
        help="Ask again after this time (one-time).",
    )
    interval: float = option(
        "--interval",
        type=_PAUSE,
        default="30s",
        show_default=True,
        metavar="DURATION",
        help="Go on without a heartbeat for this time at most (active).",
    )

    def tests(self, names: NameBook, issuer: Principal) -> tuple[OnlineTest, ...]:
        """Return the tests. Raises `MalformedError` (`online.malformed`, `cli.usage` and what names raise)."""
        if not self.kinds and (self.signer is not None or self.uris):
            raise MalformedError("cli.usage", "--online-signer and --online-uri need --online")
        signer = issuer if self.signer is None else names.principal(self.signer)
        pauses = {OnlineKind.ONE_TIME: self.recheck, OnlineKind.ACTIVE: self.interval}

        def test(kind: OnlineKind) -> OnlineTest:
            pause = pauses.get(kind)
            return OnlineTerms(kind, signer, self.uris, None if pause is None else timedelta(seconds=pause)).to_test()

        return tuple(test(OnlineKind(kind)) for kind in dict.fromkeys(self.kinds))


@option_class
class SubjectOptions:
    """Options for the subject and the validity of a certificate."""

    to: str | None = option("--to", **WHO, help="Issue it for a principal, one of your names, or a key or quorum file.")
    to_names: tuple[str, ...] = option(
        "--to-name", multiple=True, metavar="NAME", help="Issue it for a name in your name space, or in --to's."
    )
    threshold: int | None = option(
        "--threshold", type=int, metavar="K", help="Issue it for any K of the members together."
    )
    members: tuple[str, ...] = option(
        "--member", multiple=True, help="Add a member of the quorum. Can be repeated.", **WHO
    )
    period: LifetimeOptions
    comment: str = option("--comment", default="", metavar="TEXT", help="Add a comment for readers; it is signed too.")

    def find(self, names: NameBook, issuer: Principal) -> Subject:
        """Return the subject. Raises `MalformedError` (`cli.subject` and what the parts raise)."""
        if self.threshold is not None or self.members:
            if self.to is not None or self.to_names or self.threshold is None:
                raise _subject()
            return Threshold(self.threshold, tuple(map(names.subject, self.members)))
        if self.to_names:
            base = issuer if self.to is None else names.principal(self.to)
            if not all(self.to_names):
                raise _subject()
            return Name(base, tuple(name.encode("utf-8", "surrogateescape") for name in self.to_names))
        if self.to is None:
            raise _subject()
        return names.subject(self.to)


@dataclass(frozen=True, slots=True)
class Issuing:
    """A certificate to be issued, without its content."""

    session: CommandSession
    key: KeyOptions
    subject: SubjectOptions
    destination: OutputFile
    names: NameBook
    validity: Validity

    @classmethod
    def of(
        cls,
        session: CommandSession,
        key: KeyOptions,
        subject: SubjectOptions,
        destination: OutputFile,
        names: NamesOption,
    ) -> "Issuing":
        """Read the files that the options name, except the key. Raises what reading raises."""
        book = names.load()
        validity = subject.period.validity(session.now)
        check_comment(subject.comment)
        destination.check()
        return cls(session, key, subject, destination, book, validity)

    @property
    def comment(self) -> str:
        """The remark for readers."""
        return self.subject.comment

    def issue(self, state: State, event_type: EventType | None = None, more: tuple[Warned, ...] = ()) -> CommandAnswer:
        """Sign the content that `state` returns, print warnings, write it, and return the answer."""
        key = self.key.open()
        statement = state(key.principal, self.subject.find(self.names, key.principal))
        certificate = issue(statement, key)
        flagged = (Warned(flag.code, flag.message) for flag in flags(statement))
        warnings = (*flagged, *self.subject.period.warnings(), *doubts(statement, self.session.now), *more)
        warn(*warnings)
        value = Credentials.of(certificate).to_sexp()
        data = {
            "id": certificate.id,
            **statement_data(certificate.statement),
            "warnings": [warning.as_dict() for warning in warnings],
            "certificate": transport(value).decode(),
        }
        line = Wording(self.names, *filter(None, (event_type,))).line(certificate.statement)
        return self.destination.answer(value, data, [line])
