"""From the words of `penstock cert` to the right, the subject and the dates that a certificate states."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.apps.cli.attributes import parse_value, split_pair
from penstock.apps.cli.names import Names
from penstock.apps.cli.trusted import need_type
from penstock.codec.sexp import parse as parse_sexp
from penstock.errors import MalformedError
from penstock.model.instants import parse_instant
from penstock.model.names import AttributeId, check_token
from penstock.model.principals import Principal
from penstock.model.types import EventType
from penstock.model.values import Kind, Value, check_value
from penstock.trust.capabilities import BoundSelector, Right, event_tag, network_tag
from penstock.trust.subjects import Name, Subject, Threshold
from penstock.trust.tags import Tag, parse_tag
from penstock.trust.validity import Validity


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

    def to_tag(self, names: Names, event_type: EventType | None) -> Tag:
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
            return parse_tag(parse_sexp(self.tag.encode("utf-8", "surrogateescape")))
        rights = self._rights()
        if self.network is not None:
            self._only("--network", self.version, *self._terms())
            owner, name = names.owned(self.network, "network")
            return network_tag(owner, name, rights)
        return self._type_tag(names, event_type, rights)

    def _type_tag(self, names: Names, event_type: EventType | None, rights: list[Right] | None) -> Tag:
        if self.type_name is not None:
            owner, name = names.owned(self.type_name, "type")
        else:
            known = need_type(event_type, "the right").name
            owner, name = known.owner, known.name
        if self.version is not None:
            check_token(self.version, "version")
        forced = dict(self._force(written, names, event_type) for written in self.forced)
        listed = [attribute_id(written, names, event_type) for written in self.attributes]
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

    def _force(self, written: str, names: Names, event_type: EventType | None) -> tuple[AttributeId, Value]:
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


def attribute_id(written: str, names: Names, event_type: EventType | None) -> AttributeId:
    """Return the id of an attribute that is written as an id or named as the type names it."""
    if "#" in written:
        return names.attribute(written)
    return need_type(event_type, f"attribute `{written[:80]}`").attribute(written).id


def subject_of(  # noqa: PLR0913  # the ways to name a subject
    names: Names,
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
    """Return the period of a certificate. Raises `MalformedError` (`cli.validity`, `date.malformed`)."""
    begin = None if not_before is None else parse_instant(not_before)
    end = None if not_after is None else parse_instant(not_after)
    if days is not None:
        if end is not None:
            raise MalformedError("cli.validity", "--days and --not-after both say when a certificate ends")
        try:
            end = ((begin or now) + timedelta(days=days)).replace(microsecond=0)
        except OverflowError:
            raise MalformedError("cli.validity", f"{days} days from then is no date") from None
    return Validity.between(begin, end)
