"""From the words of `penstock cert` to the right, the subject and the dates that a certificate states."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

import click

from penstock.apps.cli.shared import options
from penstock.apps.cli.shared.attributes import given_twice, parse_value, split_pair
from penstock.apps.cli.shared.credentials import need_type
from penstock.apps.cli.shared.describe import Wording, instant_text, statement_data
from penstock.apps.cli.shared.files import Destination
from penstock.apps.cli.shared.names import NameBook, load_names
from penstock.apps.cli.shared.options import JSON, open_key
from penstock.apps.cli.shared.session import CommandSession, Warned, say, say_block, say_json, warn
from penstock.codec.sexp import advanced, transport
from penstock.codec.sexp import parse as parse_sexp
from penstock.crypto import SigningKey
from penstock.errors import MalformedError
from penstock.guard import ENVIRONMENT
from penstock.model.instants import parse_end, parse_instant
from penstock.model.names import AttributeId, check_token
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Kind, Value, check_value
from penstock.selector import parse as parse_selector
from penstock.trust.capabilities import EVENT_TYPE, NETWORK, BoundSelector, Right, event_tag, flags, network_tag
from penstock.trust.certificates import Authorisation, Certificate, Statement, issue
from penstock.trust.credentials import Credentials
from penstock.trust.subjects import Name, Subject, Threshold
from penstock.trust.tags import Set, Tag, parse_tag
from penstock.trust.validity import Validity

#: what a TIME means that is a date and no more
MIDNIGHT: Final = "a date alone is 00:00 UTC of that day"
LAST_SECOND: Final = "a date alone includes that day, until 23:59:59 UTC"
_VOCABULARY: Final = (NETWORK, EVENT_TYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The right that the options of one command ask for."""

    network: str | None
    type_name: str | None
    tag: str | None
    version: str | None
    rights: tuple[str, ...]
    all_rights: bool
    attributes: tuple[str, ...]
    forced: tuple[str, ...]
    where: tuple[str, ...]
    when: tuple[str, ...]

    def to_tag(self, names: NameBook, event_type: EventType | None) -> Tag:
        """Return the right as a tag.

        Raises `MalformedError` (`cli.resource`, `cli.rights`, `cli.type-file` and what the parts raise) and
        `SelectorError`.
        """
        resources = [self.network, self.type_name or event_type, self.tag]
        if sum(resource is not None for resource in resources) != 1:
            raise MalformedError(
                "cli.resource",
                "a certificate is about one thing: a network, event types, or a tag of your own",
                hint="give one of --network, --type (or --type-file) and --tag",
            )
        if self.tag is not None:
            self._only("--tag", self.version, self.rights, self.all_rights, *self._terms())
            tag = parse_tag(parse_sexp(self.tag.encode("utf-8", "surrogateescape")))
            if isinstance(tag, Set) and not any(tag.members()):
                raise MalformedError(
                    "capability.empty", "the tag gives no right at all", hint="an empty set has nothing"
                )
            return tag
        rights = self._rights()
        if self.network is not None:
            self._only("--network", self.version, *self._terms())
            owner, name = names.owned(self.network, "network")
            return network_tag(owner, name, rights)
        return self._type_tag(names, event_type, rights)

    def doubts(self) -> Iterator[Warned]:
        """Yield what should be said about the conditions: facts that not every broker knows."""
        for text in self.when:
            for fact in sorted(parse_selector(text).attributes - ENVIRONMENT.keys()):
                yield Warned(
                    "capability.unknown-fact",
                    f"only brokers that know `{fact}` can ask the condition; for all others the right does not count",
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
                raise given_twice(f"--force {written.partition('=')[0]}", "an attribute has one forced value")
        listed = [attribute_id(written, names, event_type) for written in self.attributes]
        for index, attribute in enumerate(listed):
            if attribute in listed[:index]:
                raise given_twice(f"--attribute {self.attributes[index]}", "name each attribute once")
        for text in self.when:
            # What brokers know of themselves has a kind; facts that only some of them know are not looked at here.
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
        )

    def _force(self, written: str, names: NameBook, event_type: EventType | None) -> tuple[AttributeId, Value]:
        name, value = split_pair(written, "ATTRIBUTE=VALUE")
        known = need_type(event_type, "a forced value")
        found = attribute_id(name, names, event_type)
        if found not in known.by_id:
            raise MalformedError(
                "type.unknown-attribute",
                f"`{known.name.name}` has no attribute `{name}`",
                hint=f"it has: {', '.join(known.by_name)}",
            )
        spec = known.by_id[found].spec
        read = parse_value(spec.kind, value)
        spec.check(read)
        return found, read

    def _rights(self) -> list[Right] | None:
        if bool(self.rights) is self.all_rights:
            raise MalformedError(
                "cli.rights",
                "say which rights are given",
                hint="give --right for each of them, or --all-rights for every one",
            )
        return None if self.all_rights else [Right(right) for right in self.rights]

    def _terms(self) -> tuple[object, ...]:
        return (self.attributes, self.forced, self.where, self.when)

    def _only(self, option: str, *others: object) -> None:
        if any(others):
            raise MalformedError(
                "cli.resource",
                f"with {option} a certificate cannot carry versions, attributes, values or selectors"
                + (" or rights" if option == "--tag" else ""),
                hint="these belong to rights on event types",
            )


def doubts(statement: Statement, now: datetime) -> Iterator[Warned]:
    """Yield what should be said about a certificate before it is issued, as far as the library does not say it."""
    ends = statement.validity.ends
    if ends is not None and ends < now:
        yield Warned("capability.already-over", f"the certificate is over already, since {instant_text(ends)}")
    if isinstance(statement, Authorisation):
        tags = statement.tag.members() if isinstance(statement.tag, Set) else [statement.tag]
        if any(isinstance(tag, bytes) or (isinstance(tag, tuple) and tag[0] not in _VOCABULARY) for tag in tags):
            yield Warned(
                "capability.other-vocabulary",
                "the tag is no right on networks or event types, and gives none",
            )


def attribute_id(written: str, names: NameBook, event_type: EventType | None) -> AttributeId:
    """Return the id of an attribute that is written as an id or named as the type names it."""
    if "#" in written:
        return names.attribute(written)
    return need_type(event_type, f"attribute `{written[:80]}`").attribute(written).id


def subject_of(  # noqa: PLR0913  # the ways to name a subject
    names: NameBook,
    issuer: Principal,
    *,
    to: str | None,
    to_names: tuple[str, ...],
    threshold: int | None,
    members: tuple[str, ...],
) -> Subject:
    """Return whom a certificate is about. Raises `MalformedError` (`cli.subject` and what the parts raise)."""
    if threshold is not None or members:
        if to is not None or to_names or threshold is None:
            raise _subject()
        return Threshold(threshold, tuple(names.subject(member) for member in members))
    if to_names:
        base = issuer if to is None else names.principal(to)
        if not all(to_names):
            raise _subject()
        return Name(base, tuple(name.encode("utf-8", "surrogateescape") for name in to_names))
    if to is None:
        raise _subject()
    return names.subject(to)


def _subject() -> MalformedError:
    return MalformedError(
        "cli.subject",
        "a certificate is for one subject",
        hint="give --to WHO, --to-name NAME (of --to WHO, else of your own), or --threshold K with --member WHO …",
    )


def check_comment(comment: str) -> str:
    """Return a comment that can be written down. Raises `MalformedError` (`value.text`)."""
    check_value(Kind.STRING, comment)
    return comment


def validity_of(now: datetime, not_before: str | None, not_after: str | None, days: int | None) -> Validity:
    """Return the period of a certificate or a rule. Raises `MalformedError` (`cli.validity`, `date.malformed`)."""
    begin = None if not_before is None else parse_instant(not_before)
    end = None if not_after is None else parse_end(not_after)
    if days is not None:
        if end is not None:
            raise MalformedError("cli.validity", "--days and --not-after both say when the period ends")
        try:
            end = ((begin or now) + timedelta(days=days)).replace(microsecond=0)
        except OverflowError:
            raise MalformedError("cli.validity", f"{days} days from then is no date") from None
    return Validity.between(begin, end)


# ----------------------------------------------------------------------------------------------------------------------
# What the commands share that sign a certificate: the key, whom it is for, while it is valid, and where it goes.


State: TypeAlias = Callable[[Principal, Subject], Statement]
"""What a certificate is to say, once it is known who signs it and whom it is for."""


def subject_options(function: options.F) -> options.F:
    """Add the options that say whom a certificate is for, and while it is valid."""
    for option in (
        click.option("--comment", default="", metavar="TEXT", help="A remark for readers; it is signed too."),
        click.option("--days", type=click.IntRange(min=1), metavar="N", help="How many days it is valid."),
        click.option("--not-after", metavar="TIME", help=f"The last moment at which it is valid; {LAST_SECOND}."),
        click.option("--not-before", metavar="TIME", help=f"The first moment at which it is valid; {MIDNIGHT}."),
        click.option("--member", "members", multiple=True, help="A member of the quorum; repeat it.", **options.WHO),
        click.option("--threshold", type=int, metavar="K", help="For any K of the members together."),
        click.option("--to-name", "to_names", multiple=True, metavar="NAME", help="For a name of yours, or of --to's."),
        click.option("--to", **options.WHO, help="For a principal, one of your names, or a key or quorum file."),
    ):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuing:
    """A certificate that is asked for, but for what it says."""

    session: CommandSession
    names: NameBook
    validity: Validity
    comment: str
    destination: Destination
    output: str
    _open: Callable[[], SigningKey]
    _subject: Callable[[Principal], Subject]

    @classmethod
    def of(  # noqa: PLR0913  # one argument an option
        cls,
        session: CommandSession,
        *,
        key_file: str,
        passphrase_file: str | None,
        not_before: str | None,
        not_after: str | None,
        days: int | None,
        comment: str,
        out: str | None,
        overwrite: bool,
        dry_run: bool,
        output: str,
        names_file: str | None,
        **subject: Any,
    ) -> "Issuing":
        """Take in the options of `key_options`, `subject_options` and `write_options`. Raises what reading raises."""
        names = load_names(names_file)
        return cls(
            session=session,
            names=names,
            validity=validity_of(session.now, not_before, not_after, days),
            comment=check_comment(comment),
            destination=Destination.free(out, overwrite=overwrite, dry_run=dry_run),
            output=output,
            _open=lambda: open_key(key_file, passphrase_file),
            _subject=lambda issuer: subject_of(names, issuer, **subject),
        )

    def issue(self, state: State, event_type: EventType | None = None, more: tuple[Warned, ...] = ()) -> None:
        """Sign what `state` says, warn about what should be known of it, write it, and answer."""
        key = self._open()
        statement = state(key.principal, self._subject(key.principal))
        certificate = issue(statement, key)
        told = (Warned(flag.code, flag.message) for flag in flags(statement))
        warnings = (*told, *doubts(statement, self.session.now), *more)
        warn(*warnings)
        self._finish(certificate, warnings, Wording(self.names, event_type))

    def _finish(self, certificate: Certificate, warnings: tuple[Warned, ...], wording: Wording) -> None:
        value = Credentials.of(certificate).to_sexp()
        self.destination.put(value)
        if self.output == JSON:
            say_json(
                {
                    "id": certificate.id,
                    **statement_data(certificate.statement),
                    "warnings": [warning.as_dict() for warning in warnings],
                    "certificate": transport(value).decode(),
                    **self.destination.as_dict(),
                }
            )
        elif self.destination.file is None:
            say_block(advanced(value))
        else:
            say(self.destination.line())
            say(wording.line(certificate.statement))
