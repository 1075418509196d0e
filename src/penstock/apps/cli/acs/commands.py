"""`penstock acs`: manage a domain through its access control service. Every verb except `serve` calls its HTTP API."""

import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import click

from penstock.apps.acs.client import DomainClient
from penstock.apps.acs.operations import credentials_of
from penstock.apps.cli.acs.holder_output import show_holders
from penstock.apps.cli.acs.serve import serve
from penstock.apps.cli.certs.grants import OnlineOptions, RightOptions, SubjectOptions, check_comment
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    option,
    option_class,
    output_option,
)
from penstock.apps.cli.shared.credentials import read_bag
from penstock.apps.cli.shared.describe import counted, listed, table
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import RIGHT, WHO, Duration, KeyOptions, NamesOption, OutputFile
from penstock.apps.cli.shared.session import CommandSession, Verbs
from penstock.apps.cli.shared.terminal import Shown, fact_table, grid_table
from penstock.authority.domain.domain_changes import MemberKind
from penstock.codec.sexp import advanced, transport
from penstock.codec.wire import Wire
from penstock.errors import FailedError, MalformedError
from penstock.model.principals import Principal
from penstock.trust.certificates import subject_to_sexp
from penstock.trust.tags import to_sexp

_LOST: Final = "the change was made, but its answer was lost; `penstock acs log` shows it"
#: characters of a certificate's id in tables, and of a whole one
_SHORT: Final = 15
_WHOLE: Final = 57
DEFAULT_URL: Final = "http://127.0.0.1:7710"


@click.group(cls=Verbs)
def acs() -> None:
    """Manage a domain: members, certificates, who holds which right.

    `penstock acs serve` runs the service. The other commands call it. Each request is signed with --key, and the
    service decides by that key's rights on the domain: `administer` to change, `audit` to read, and `connect` for what
    concerns the caller itself.
    """


acs.add_command(serve)


def _why_option() -> Any:
    return option("--why", default="", metavar="TEXT", help="Record this reason (default: none).")


@option_class
class ServiceOptions:
    """Options for the service that a command calls."""

    url: str = option(
        "--service",
        envvar="PENSTOCK_ACS",
        default=DEFAULT_URL,
        show_default=True,
        metavar="URL",
        help="Call the service at this address, or at the one in $PENSTOCK_ACS.",
    )
    domain: str = option(
        "--domain",
        envvar="PENSTOCK_DOMAIN",
        required=True,
        help="Require this domain: a principal, one of your names, or a key file (default: $PENSTOCK_DOMAIN).",
        **WHO,
    )
    ca_file: str | None = option(
        "--ca", metavar="FILE", help="Trust this certificate authority in PEM for https (default: the system's)."
    )
    key: KeyOptions
    names: NamesOption

    def open(self, session: CommandSession) -> tuple[DomainClient, NameBook]:
        """Return a client of the service, and the reader's names. Raises what reading its files raises."""
        names = self.names.load()
        try:
            tls = None if self.ca_file is None else ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ValueError):
            raise FailedError("file.unreadable", f"`{self.ca_file}` is not a certificate authority in PEM") from None
        domain = names.principal(self.domain)
        return DomainClient(self.url, domain, self.key.open(), lambda: datetime.now(UTC), session.random, tls), names


def _changed(answer: Mapping[str, object], *lines: Shown) -> CommandAnswer:
    changes = listed(answer.get("changes"))  # type: ignore[arg-type]  # JSON
    if answer.get("repeated"):
        return CommandAnswer(dict(answer), [_LOST])
    shown = lines or (f"✓ {counted(len(changes), 'change')}",)
    return CommandAnswer(dict(answer), shown if changes else ("nothing to change",))


# ----------------------------------------------------------------------------------------------------------------------
# Members.


@option_class
class _List:
    output: str = output_option()
    service: ServiceOptions


@command(acs, example="penstock acs members --key alice.key --domain grid")
def members(session: CommandSession, options: _List) -> CommandAnswer:
    """List the members of the domain. Needs the right `audit`."""
    client, names = options.service.open(session)
    answer = client.call("members/list", {})

    def shown() -> Iterator[Shown]:
        found = [table(one) for one in listed(answer.get("members"))]  # type: ignore[arg-type]  # JSON
        if not found:
            yield "no members yet: add one with `penstock acs add`"
            return
        rows = [
            (
                str(one.get("name")),
                str(one.get("kind")),
                names.show_text(str(one.get("principal"))),
                str(one.get("since")),
            )
            for one in found
        ]
        yield grid_table(("name", "kind", "principal", "since"), rows)

    return CommandAnswer(answer, shown())


@option_class
class _Add:
    who: str = argument(metavar="WHO")
    member_name: str = option("--name", required=True, metavar="NAME", help="Call the member this.")
    kind: str = option(
        "--kind",
        type=click.Choice([kind.value for kind in MemberKind]),
        default=MemberKind.CLIENT.value,
        show_default=True,
        help="Add it as this kind of member.",
    )
    why: str = _why_option()
    output: str = output_option()
    service: ServiceOptions


@command(acs, example="penstock acs add smith.pub --name smith --key alice.key --domain grid")
def add(session: CommandSession, options: _Add) -> CommandAnswer:
    """Add WHO to the domain as a client, a broker or a sub-domain. Needs the right `administer`.

    A member can complete its own chains, and register the certificates that it issued.
    """
    client, names = options.service.open(session)
    who = names.principal(options.who)
    fields = {"principal": str(who), "name": options.member_name, "kind": options.kind, "why": options.why}
    answer = client.call("members/add", fields)
    return _changed(answer, f"✓ {options.member_name} is a {options.kind} of the domain")


@option_class
class _Remove:
    who: str = argument(metavar="WHO")
    why: str = _why_option()
    output: str = output_option()
    service: ServiceOptions


@command(acs, example="penstock acs remove smith --why 'has left' --key alice.key --domain grid")
def remove(session: CommandSession, options: _Remove) -> CommandAnswer:
    """Remove WHO from the domain, and revoke the certificates that it was issued. Needs the right `administer`."""
    client, names = options.service.open(session)
    answer = client.call("members/remove", {"principal": str(names.principal(options.who)), "why": options.why})
    return _changed(answer, f"✓ {options.who} is not a member any more")


# ----------------------------------------------------------------------------------------------------------------------
# Certificates.


@option_class
class _Issue:
    subject: SubjectOptions
    right: RightOptions
    propagate: bool = option("--propagate", is_flag=True, help="Let the subject pass the right on.")
    online: OnlineOptions
    lifetime: float | None = option(
        "--lifetime",
        type=Duration(1e9, above=0),
        metavar="DURATION",
        help="Issue short-lived certificates, and renew them until the period ends (default: one for all of it).",
    )
    why: str = _why_option()
    destination: OutputFile
    output: str = output_option()
    service: ServiceOptions


@command(
    acs,
    example="""
penstock acs issue --to met --type grid/org.grid.Reading --right subscribe --propagate --days 90 \\
    --key alice.key --domain grid --out met.cert
penstock acs issue --to smith --type-file reading.type --right subscribe --attribute power --lifetime 1h \\
    --key alice.key --domain grid
""",
)
def issue(session: CommandSession, options: _Issue) -> CommandAnswer:
    """Let the domain grant a right. Needs the right `administer`.

    The options for the right and the subject are those of `penstock cert issue`. The domain's key signs, inside the
    service. The domain must own the resource, or have registered a certificate that lets it pass the right on.
    """
    client, names = options.service.open(session)
    validity = options.subject.period.validity(session.now)
    check_comment(options.subject.comment)
    options.destination.check()
    tag = options.right.to_tag(names, options.right.of_type.load(session.now))
    subject = options.subject.find(names, client.domain)
    answer = client.call(
        "certificates/issue",
        {
            "to": transport(subject_to_sexp(subject)).decode(),
            "tag": transport(to_sexp(tag)).decode(),
            "propagate": options.propagate,
            "not_before": _iso(validity.starts),
            "not_after": _iso(validity.ends),
            "lifetime": None if options.lifetime is None else int(options.lifetime),
            "online": [transport(test.body).decode() for test in options.online.tests(names, client.domain)],
            "comment": options.subject.comment,
            "why": options.why,
        },
    )
    changes = [table(one) for one in listed(answer.get("changes"))]  # type: ignore[arg-type]  # JSON
    if answer.get("repeated"):
        raise FailedError("acs.answer", _LOST, hint="fetch the certificate with `penstock acs complete`")
    if not changes:
        return CommandAnswer(answer, ["nothing to change: exactly this certificate was issued already"])
    bag = credentials_of(changes[-1])
    lines: list[Shown] = [f"✓ {changes[-1].get('id')!s}"]
    if options.destination.out is not None:
        options.destination.put(bag.to_sexp())
        lines.append(options.destination.line())
    else:
        lines += advanced(bag.to_sexp()).split("\n")
    return CommandAnswer({**answer, **options.destination.as_dict()}, lines)


def _iso(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat().replace("+00:00", "Z")


@command(acs, example="penstock acs certs --key alice.key --domain grid")
def certs(session: CommandSession, options: _List) -> CommandAnswer:
    """List the certificates that the domain issued and registered. Needs the right `audit`."""
    client, names = options.service.open(session)
    answer = client.call("certificates/list", {})

    def shown() -> Iterator[Shown]:
        rows = [
            (
                _short(one.get("id")),
                kind,
                names.show_text(str(one.get("issuer"))),
                names.show_text(str(one.get("subject"))),
                _grants(one, names),
                _zulu(one.get("not_after") or "without expiry"),
                _state(one),
            )
            for kind in ("issued", "registered")
            for one in map(table, listed(answer.get(kind)))  # type: ignore[arg-type]  # JSON
        ]
        titles = ("certificate", "kind", "issuer", "subject", "grants", "until", "state")
        yield grid_table(titles, rows) if rows else "none yet"

    return CommandAnswer(answer, shown())


def _grants(certificate: Mapping[str, Wire], names: NameBook) -> str:
    grants = table(certificate.get("grants"))
    if "name" not in grants:
        return ""
    rights = grants.get("rights", "*")
    shown = rights if isinstance(rights, str) else ", ".join(map(str, listed(rights)))
    shown = "all rights" if shown == "*" else shown
    return f"{shown} on {names.show_text(str(grants.get('owner')))}/{grants.get('name')!s}"


def _short(id_: object) -> str:
    """Return the beginning of a certificate's id, which `penstock acs revoke` accepts."""
    return f"{str(id_)[:_SHORT]}…"


def _state(certificate: Mapping[str, Wire]) -> str:
    if certificate.get("revoked"):
        return "revoked"
    if certificate.get("superseded"):
        return "was renewed"
    return "will be renewed" if certificate.get("renewed") else ""


@option_class
class _Revoke:
    certificates: tuple[str, ...] = argument(nargs=-1, required=True, metavar="CERTIFICATE...")
    why: str = _why_option()
    output: str = output_option()
    service: ServiceOptions


@command(acs, example="penstock acs revoke cert:… --why 'contract ended' --key alice.key --domain grid")
def revoke(session: CommandSession, options: _Revoke) -> CommandAnswer:
    """Revoke certificates that the domain issued. This cannot be undone. Needs the right `administer`.

    CERTIFICATE is an id or its beginning, or a file with certificates. The renewals of a certificate are revoked with
    it.
    """
    client, _ = options.service.open(session)
    ids: list[str] = []
    for word in options.certificates:
        if not word.startswith("cert:"):
            ids += (one.id for one in read_bag([word]).credentials.certificates)
        elif len(word) >= _WHOLE:
            ids.append(word)
        else:
            ids.append(_begins(client, word.rstrip("…")))
    answer = client.call("certificates/revoke", {"certificates": ids, "why": options.why})
    changes = [table(one) for one in listed(answer.get("changes"))]  # type: ignore[arg-type]  # JSON
    revoked = sum(len(listed(one.get("revoked"))) for one in changes)
    return _changed(answer, f"✓ revoked {counted(revoked, 'certificate')}")


def _begins(client: DomainClient, beginning: str) -> str:
    """Return the id of the issued certificate that begins so. Raises `MalformedError` (`acs.certificate`)."""
    issued = (table(one) for one in listed(client.call("certificates/list", {}).get("issued")))  # type: ignore[arg-type]  # JSON
    found = [str(one.get("id")) for one in issued if str(one.get("id")).startswith(beginning)]
    if len(found) != 1:
        raise MalformedError(
            "acs.certificate",
            f"{counted(len(found), 'certificate')} of the domain begin with `{beginning[:80]}`",
            hint="`penstock acs certs` lists them; `-o json` shows whole ids",
        )
    return found[0]


@option_class
class _Register:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    why: str = _why_option()
    output: str = output_option()
    service: ServiceOptions


@command(acs, example="penstock acs register smith.cert --key met.key --domain grid")
def register(session: CommandSession, options: _Register) -> CommandAnswer:
    """Register certificates of others: rights that the domain received, and delegations of its rights.

    Members can register what they issued themselves. Everything else needs the right `administer`.
    """
    client, _ = options.service.open(session)
    bag = read_bag(options.files)
    count = len(bag.credentials.certificates)
    answer = client.call(
        "certificates/register", {"certificates": transport(bag.to_sexp()).decode(), "why": options.why}
    )
    return _changed(answer, f"✓ registered {counted(count, 'certificate')}")


# ----------------------------------------------------------------------------------------------------------------------
# Questions.


@option_class
class _Holders:
    type_name: str = argument(metavar="TYPE")
    rights: tuple[str, ...] = option(
        "--right", multiple=True, type=RIGHT, help="List holders of this right only (default: all). Can be repeated."
    )
    at: str | None = option("--at", metavar="TIME", help="List who holds rights at this time (default: now).")
    tree: bool = option("--tree", is_flag=True, help="Show the delegations as a tree (default: a table).")
    output: str = output_option()
    service: ServiceOptions


@command(
    acs,
    example="""
penstock acs holders grid/org.grid.Reading --key alice.key --domain grid
penstock acs holders grid/org.grid.Reading --tree --right subscribe --key alice.key --domain grid
""",
)
def holders(session: CommandSession, options: _Holders) -> CommandAnswer:
    """List who can do what with TYPE right now, through which chain of certificates, and until when.

    TYPE is `owner/name`, or the name of one of the domain's own types. The list has what the service knows:
    certificates that the domain issued, and delegations that were registered. The service must know the type: name
    its file in the domain file. Needs the right `audit`.
    """
    client, names = options.service.open(session)
    answer = client.call(
        "holders",
        {
            "type": _owned(names, client.domain, options.type_name, "type"),
            "rights": list(options.rights) or None,
            "at": options.at,
        },
    )
    return CommandAnswer(answer, show_holders(answer, names, tree=options.tree))


@option_class
class _Complete:
    right: str = argument(type=RIGHT, metavar="RIGHT")
    type_name: str | None = option("--type", metavar="[OWNER/]NAME", help="Complete a right on this event type.")
    network: str | None = option("--network", metavar="OWNER/NAME", help="Complete a right on this network.")
    who: str | None = option("--for", help="Complete the chain of another principal (default: your own).", **WHO)
    destination: OutputFile
    output: str = output_option()
    service: ServiceOptions


@command(
    acs,
    example="penstock acs complete subscribe --type grid/org.grid.Reading --key smith.key --domain grid --out my.cert",
)
def complete(session: CommandSession, options: _Complete) -> CommandAnswer:
    """Fetch the certificates that give you RIGHT: the chain that is valid longest, and among those the shortest.

    Give the file to `penstock pub` and `penstock sub` with --credential. Your own chain needs the right `connect`,
    which every member has; the chains of others need `audit`.
    """
    if (options.type_name is None) is (options.network is None):
        raise MalformedError("cli.resource", "a right is on a type or on a network", hint="give --type or --network")
    client, names = options.service.open(session)
    options.destination.check()
    answer = client.call(
        "complete",
        {
            "right": options.right,
            "type": None if options.type_name is None else _owned(names, client.domain, options.type_name, "type"),
            "network": None if options.network is None else str(names.network(options.network)),
            "principal": None if options.who is None else str(names.principal(options.who)),
        },
    )
    chain = [table(one) for one in listed(answer.get("chain"))]  # type: ignore[arg-type]  # JSON
    steps = " → ".join(names.show_text(str(one.get("subject"))) for one in chain)
    lines = [fact_table([("chain", steps), ("until", _zulu(answer.get("not_after") or "without expiry"))])]
    return options.destination.answer(credentials_of(answer).to_sexp(), answer, lines)


@option_class
class _Log:
    after: int = option(
        "--after",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help="Begin after this change.",
    )
    limit: int = option(
        "--limit",
        type=click.IntRange(1, 1000),
        default=100,
        show_default=True,
        metavar="N",
        help="Show at most so many.",
    )
    output: str = output_option()
    service: ServiceOptions


@command(acs, example="penstock acs log --key alice.key --domain grid")
def log(session: CommandSession, options: _Log) -> CommandAnswer:
    """Show the changes of the domain: what, who, when and why. Needs the right `audit`."""
    client, names = options.service.open(session)
    answer = client.call("changes", {"after": options.after, "most": options.limit})
    rows = [
        (
            str(one.get("number")),
            _zulu(one.get("time")),
            str(one.get("kind")),
            names.show_text(str(one.get("by"))),
            _about(one, names),
            str(one.get("why")),
        )
        for one in map(table, listed(answer.get("changes")))  # type: ignore[arg-type]  # JSON
    ]
    return CommandAnswer(answer, [grid_table(("number", "time", "change", "by", "about", "why"), rows)])


def _about(change: Mapping[str, Wire], names: NameBook) -> str:
    member = names.show_text(str(change.get("member", "")))
    ids = [*listed(change.get("revoked")), *(table(one).get("id") for one in listed(change.get("registered")))]
    if "id" in change:
        holder = names.show_text(str(change.get("subject")))
        return f"{holder}: {_grants(change, names)}, {_short(change['id'])}"
    return str(change.get("name") or "") or member or ", ".join(map(str, ids))


def _zulu(instant: object) -> str:
    return str(instant).replace("+00:00", "Z")


def _owned(names: NameBook, domain: Principal, text: str, what: str) -> str:
    """Return the full name of a type; without an owner it is the domain's own."""
    owner, name = names.owned(text, what) if "/" in text else (domain, text)
    if owner is None or name is None:
        raise MalformedError("name.malformed", f"`{text[:80]}` is not one {what}", hint="write `owner/name`")
    return f"{owner}/{name}"
