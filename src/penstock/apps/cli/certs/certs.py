"""`penstock cert`: issue, show and verify certificates."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Final

import click

from penstock.apps.cli.certs.grants import Issuing, LifetimeOptions, OnlineOptions, RightOptions, SubjectOptions
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    one_answer,
    option,
    option_class,
    output_option,
)
from penstock.apps.cli.shared.credentials import (
    CredentialFiles,
    find_types,
    load_credentials,
    read_bag,
)
from penstock.apps.cli.shared.describe import (
    Wording,
    counted,
    date_problem,
    statement_data,
    validity_text,
)
from penstock.apps.cli.shared.files import as_text, check_target, within, write_bytes
from penstock.apps.cli.shared.options import (
    SEXP,
    AtOption,
    Duration,
    KeyOptions,
    NamesOption,
    OutputFile,
    TypeFileOptions,
)
from penstock.apps.cli.shared.revocations import (
    CHAINS,
    NOT_CHECKED,
    RenewalAdvice,
    RevocationCheck,
    check_files,
    context_option,
    revoked_in_chains,
)
from penstock.apps.cli.shared.session import CommandSession, Verbs, speak, warn
from penstock.apps.cli.shared.terminal import Shown, TreeLine, fact_table, grid_table, trees
from penstock.codec.sexp import advanced
from penstock.crypto import SigningKey, digest
from penstock.errors import MalformedError, RefusedError
from penstock.model.instants import instant_key
from penstock.model.principals import Principal
from penstock.trust.certificates import (
    Authorisation,
    Certificate,
    Name,
    NameCertificate,
    Statement,
    Subject,
    Threshold,
    UnverifiedCertificate,
    certificate_id,
    read_statement,
    verify_certificate,
)
from penstock.trust.certificates import issue as sign_certificate
from penstock.trust.credentials import Credentials, Damaged
from penstock.trust.limits import CHAIN_LENGTH
from penstock.trust.validity import State, Validity

# ----------------------------------------------------------------------------------------------------------------------
# Certificates on the screen: one in full, several as a tree of grants.


@dataclass(frozen=True, slots=True)
class Judged:
    """A certificate with its problem, as a code and a message; both are empty if it has none."""

    id: str
    statement: Statement
    code: str = ""
    problem: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        data = {"id": self.id, "ok": not self.code, **statement_data(self.statement)}
        return data | ({"code": self.code, "problem": self.problem} if self.code else {})


def judge_bag(bag: CredentialFiles, now: datetime) -> list[Judged]:
    """Judge every certificate of a bag. Raises the error of a certificate that cannot be read at all."""
    return [
        *(judge(certificate, now) for certificate in bag.credentials.certificates),
        *map(_judge_damaged, bag.damaged),
    ]


def _judge_damaged(one: Damaged) -> Judged:
    """Judge a certificate that was changed after it was signed: its content is shown, but nobody signed it."""
    if isinstance(one.error, MalformedError):
        raise one.error
    problem = f"not verified: {one.error.message}"
    return Judged(certificate_id(digest(one.body)), read_statement(one.body), one.error.code, problem)


def judge(certificate: UnverifiedCertificate, now: datetime) -> Judged:
    """Check the signature, then the dates. On-line tests are not performed here."""
    id_, statement = certificate.id, certificate.statement
    try:
        verify_certificate(certificate)
    except RefusedError as error:
        return Judged(id_, statement, error.code, error.message)
    state = statement.validity.state(instant_key(now))
    if state is State.VALID:
        return Judged(id_, statement)
    return Judged(id_, statement, f"cert.{state}", date_problem(f"cert.{state}", statement.validity))


def show_bag(
    judged: list[Judged], quorums: tuple[Threshold, ...], wording: Wording, *, in_full: bool
) -> Iterator[Shown]:
    """Yield one certificate in full, several as a tree."""
    if not judged and not quorums:
        yield "nothing: no certificate and no quorum"
        return
    if in_full or len(judged) == 1:
        for index, one in enumerate(judged):
            if index:
                yield ""
            yield fact_table(_facts(one, wording))
    else:
        yield from trees(_forest(judged, wording))
    for quorum in quorums:
        yield fact_table([("quorum", wording.subject(quorum)), ("principal", str(quorum.principal))])


def _facts(one: Judged, wording: Wording) -> list[tuple[str, str]]:
    valid = "✓ signed, and valid by its dates; `penstock cert list` says whether it is revoked"
    state = f"✗ {one.problem} [{one.code}]" if one.code else valid
    return [("certificate", one.id), *wording.statement(one.statement), ("state", state)]


def _forest(judged: list[Judged], wording: Wording) -> list[TreeLine]:
    """Put each certificate below those that lead to its issuer, and the others at the top."""
    by_issuer: dict[Principal, list[Judged]] = {}
    for one in judged:
        by_issuer.setdefault(one.statement.issuer, []).append(one)
    shown: set[str] = set()

    def grow(node: TreeLine, principal: Principal, depth: int) -> None:
        for one in by_issuer.get(principal, ()):
            if one.id in shown:
                continue
            shown.add(one.id)
            child = TreeLine(_line(one, wording))
            node.children.append(child)
            # Cycles end because each certificate is shown once; a long chain continues at the top.
            if depth < CHAIN_LENGTH:
                for reached in _reached(one.statement.subject):
                    grow(child, reached, depth + 1)

    led_to = {
        reached for one in judged for reached in _reached(one.statement.subject) if reached != one.statement.issuer
    }
    roots: list[TreeLine] = []
    for principal in [*(issuer for issuer in by_issuer if issuer not in led_to), *by_issuer]:
        node = TreeLine(wording.who(principal))
        grow(node, principal, 0)
        if node.children:
            roots.append(node)
    return roots


def _reached(subject: Subject) -> list[Principal]:
    match subject:
        case Principal():
            return [subject]
        case Name():
            return []
        case Threshold():
            return [principal for member in subject.subjects for principal in _reached(member)]


def _line(one: Judged, wording: Wording) -> str:
    mark = f"✗ {one.problem}" if one.code else "✓"
    # The issuer is the node above.
    text = wording.line(one.statement).split(" ", 1)[-1]
    return f"{mark} {text}"


# ----------------------------------------------------------------------------------------------------------------------
# The commands.


@click.group(cls=Verbs, elsewhere=dict.fromkeys(("revoke", "publish"), "penstock net"))
def cert() -> None:
    """Issue, list, renew and verify certificates, which grant rights."""


@option_class
class _Issue:
    key: KeyOptions
    subject: SubjectOptions
    online: OnlineOptions
    right: RightOptions
    propagate: bool = option("--propagate", is_flag=True, help="Let the subject pass the right on.")
    destination: OutputFile
    output: str = output_option()
    names: NamesOption


@command(
    cert,
    example="""
penstock cert issue --key ccs.key --to billing --type-file numberplate.type \\
    --right subscribe --attribute numberplate --attribute timestamp --days 365 --out billing.cert
penstock cert issue --key met.key --to-name "Met Brokers" --network "pito/UK Police Network" \\
    --right connect --right broker
""",
)
def issue(session: CommandSession, options: _Issue) -> CommandAnswer:
    """Grant a right to a subject.

    A right is on a network (connect, broker, install), on decisions about resources (decide, ask), or on event types:
    publish and subscribe; manage and its single operations; route, for brokers that carry events; and for sealed types
    keys, to manage them, and history, to fetch old ones. Attributes, forced values and selectors need --type-file, so
    that their names are known.
    """
    made = Issuing.of(session, options.key, options.subject, options.destination, options.names)
    event_type = options.right.of_type.load(session.now)
    wanted = options.right.to_tag(made.names, event_type)

    def state(issuer: Principal, subject: Subject) -> Statement:
        validity = replace(made.validity, online=options.online.tests(made.names, issuer))
        return Authorisation(issuer, subject, wanted, options.propagate, validity, made.comment)

    return made.issue(state, event_type, tuple(options.right.doubts()))


@option_class
class _Name:
    local_name: str = argument(metavar="NAME")
    key: KeyOptions
    subject: SubjectOptions
    online: OnlineOptions
    destination: OutputFile
    output: str = output_option()
    names: NamesOption


@command(
    cert,
    "issue-name",
    example='penstock cert issue-name "Met Brokers" --key met.key --to broker1 --days 30 --out broker1.cert',
)
def issue_name(session: CommandSession, options: _Name) -> CommandAnswer:
    """Issue a name certificate: define NAME in your own name space.

    Several such certificates make a group: a right that is granted to the name is granted to all its members.
    """
    made = Issuing.of(session, options.key, options.subject, options.destination, options.names)
    written = options.local_name.encode("utf-8", "surrogateescape")
    if not written:
        raise click.UsageError("a name is not empty")

    def state(issuer: Principal, subject: Subject) -> Statement:
        validity = replace(made.validity, online=options.online.tests(made.names, issuer))
        return NameCertificate(issuer, written, subject, validity, made.comment)

    return made.issue(state)


@option_class
class _Show:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    in_full: bool = option("--long", is_flag=True, help="Show every certificate in full, even if there are several.")
    of_type: TypeFileOptions
    at: AtOption
    output: str = output_option(SEXP)
    names: NamesOption


@command(cert, example="penstock cert show met.cert\npenstock cert show *.cert   # several: a tree of grants")
def show(session: CommandSession, options: _Show) -> CommandAnswer:
    """Show what certificates say, and whether they are signed and valid by their dates.

    Revocations are not looked at: `penstock cert list` asks a broker about them, and `penstock explain` counts them.
    The exit status is 0 even if a certificate is expired or forged: use `penstock cert verify` to decide.
    """
    names = options.names.load()
    bag = read_bag(options.files)
    if options.output == SEXP:
        return CommandAnswer({}, advanced(bag.to_sexp()).split("\n"))
    now = options.at.moment(session)
    judged = judge_bag(bag, now)
    data = {"certificates": [one.as_dict() for one in judged], "quorums": [str(q.principal) for q in bag.quorums]}

    def shown() -> Iterator[Shown]:
        wording = Wording(names, *filter(None, (options.of_type.load(now),)), *find_types(session.now, *options.files))
        yield from show_bag(judged, bag.quorums, wording, in_full=options.in_full)

    return CommandAnswer(data, shown())


@option_class
class _Verify:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    at: AtOption
    output: str = output_option()
    names: NamesOption


@command(cert, example="penstock cert verify met.cert --at 2026-12-31T23:59Z && echo good")
def verify(session: CommandSession, options: _Verify) -> CommandAnswer:
    """Check the signatures and dates of certificates, now or at another time."""
    with one_answer({"ok": False, "certificates": []}):
        wording = Wording(options.names.load(), *find_types(session.now, *options.files))
        judged = judge_bag(read_bag(options.files), options.at.moment(session))
    bad = [one for one in judged if one.code]
    error = None
    if not judged:
        error = RefusedError("cert.none", "there is no certificate to verify", hint="give a file that holds one")
    elif bad:
        error = RefusedError(
            bad[0].code,
            f"{len(bad)} of {len(judged)} certificates cannot be used: {bad[0].problem}",
            certificate=bad[0].id,
        )
    data = {"ok": not bad and bool(judged), "certificates": [one.as_dict() for one in judged]}
    lines = (f"{_mark(one)}  {wording.line(one.statement)}" for one in judged)
    return CommandAnswer(data, lines, error)


def _mark(one: Judged) -> str:
    return f"✗ {one.problem} [{one.code}]" if one.code else "✓"


# ----------------------------------------------------------------------------------------------------------------------
# When the certificates in files and folders expire.

#: seconds; a time that is further away cannot be computed with
_LONGEST: Final = 365_000 * 86_400
#: certificates that expire within this time are marked
SOON: Final = timedelta(days=30)
REVOKED: Final = "cert.revoked"
_SUFFIXES: Final = (".cert", ".certs")


class Expiry(StrEnum):
    """Whether a certificate needs attention, and why."""

    VALID = "valid"
    EXPIRING = "expiring"
    NEVER = "never-expires"
    EXPIRED = "expired"
    REVOKED = "revoked"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class ListedCertificate:
    """A certificate in a file, and how long it is still valid."""

    file: str
    judged: Judged
    expiry: Expiry
    left: str
    #: whether a broker of its network was asked if it is revoked
    checked: bool = False

    @property
    def ends(self) -> datetime | None:
        """When it expires, if ever."""
        return self.judged.statement.validity.ends

    @property
    def mark(self) -> str:
        """The mark in a list."""
        return {Expiry.VALID: "✓", Expiry.EXPIRING: "!", Expiry.NEVER: "∞"}.get(self.expiry, "✗")

    @property
    def state(self) -> str:
        """Whether it is valid and for how long, in words."""
        match self.expiry:
            case Expiry.VALID | Expiry.EXPIRING:
                return f"expires in {self.left}"
            case Expiry.NEVER:
                return "never expires"
        return self.left

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {"file": self.file, "expiry": str(self.expiry), "checked": self.checked, **self.judged.as_dict()}


def certificate_files(paths: Iterable[str]) -> Iterator[Path]:
    """Yield files, and the files with certificates in folders and what is below them."""
    for path in map(Path, paths):
        inside = (one for one in sorted(path.rglob("*")) if one.suffix in _SUFFIXES and one.is_file())
        yield from inside if path.is_dir() else (path,)


def find_certificates(
    paths: Iterable[str],
    now: datetime,
    soon: timedelta = SOON,
    check: Callable[[str], RevocationCheck] = lambda _file: NOT_CHECKED,
) -> Iterator[ListedCertificate]:
    """Yield the certificates in files, and in folders and what is below them. Raises what reading a file raises.

    `check` returns which certificates of a file are revoked.
    """
    for file in map(str, certificate_files(paths)):
        known = check(file)
        for judged in judge_bag(read_bag([file]), now):
            yield replace(_listed(file, _revoked(judged, known), now, soon), checked=known.answered)


def _revoked(judged: Judged, check: RevocationCheck) -> Judged:
    found = None if judged.code else check.of(judged.id, judged.statement)
    return judged if found is None else replace(judged, code=REVOKED, problem=found.words())


def _listed(file: str, judged: Judged, now: datetime, soon: timedelta) -> ListedCertificate:
    ends = judged.statement.validity.ends
    if judged.code == REVOKED:
        return ListedCertificate(file, judged, Expiry.REVOKED, judged.problem)
    if judged.code:
        expired = judged.code == f"cert.{State.EXPIRED}"
        return ListedCertificate(file, judged, Expiry.EXPIRED if expired else Expiry.INVALID, judged.problem)
    if ends is None:
        return ListedCertificate(file, judged, Expiry.NEVER, "never")
    left = ends - now
    words = counted(left.days, "day") if left.days else counted(left.seconds // 3600, "hour")
    return ListedCertificate(file, judged, Expiry.EXPIRING if left <= soon else Expiry.VALID, words)


# ----------------------------------------------------------------------------------------------------------------------
# `penstock cert list` and `penstock cert renew`: which rights end when, and the same rights for longer.


@option_class
class _List:
    paths: tuple[str, ...] = argument(nargs=-1, metavar="[FILE|FOLDER]...")
    within: float = option(
        "--within",
        type=Duration(_LONGEST, unit="d"),
        default=f"{SOON.days}d",
        show_default=True,
        metavar="DURATION",
        help="Mark certificates that expire within this time. A plain number is days.",
    )
    context: str | None = context_option()
    at: AtOption
    output: str = output_option()
    names: NamesOption


@command(cert, "list", example="penstock cert list\npenstock cert list certs --within 60d -o json")
def list_(session: CommandSession, options: _List) -> CommandAnswer:
    """List certificates: who may do what, and when each right ends (default: all below this folder).

    Expired, expiring, revoked and never-expiring certificates are marked. Revocations are known from chains of policy
    events in the folder, and from a broker of the certificates' own network, if a context or the environment has one.
    If none can be asked, the table says so. The exit status is 0 in any case: `penstock doctor` decides.
    """
    now, paths = options.at.moment(session), options.paths or (".",)
    wording = Wording(options.names.load(), *find_types(session.now, *paths))
    chains = (one for path in map(Path, paths) if path.is_dir() for one in sorted(path.rglob(f"*{CHAINS}")))
    chained, files = revoked_in_chains(chains), [*map(str, certificate_files(paths))]
    checks = {file: chained | one for file, one in check_files(files, wording.names, options.context).items()}
    warn(*dict.fromkeys(warning for one in checks.values() for warning in one.warnings()))
    at = datetime.max.replace(tzinfo=UTC) if options.at.at is None else now
    found = list(find_certificates(files, now, timedelta(seconds=options.within), lambda file: checks[file].until(at)))
    rows = [
        (
            one.mark,
            *_columns(one.judged.statement, wording),
            _state_cell(one, wording),
            one.file,
        )
        for one in sorted(found, key=lambda one: (one.ends is None, one.ends or now))
    ]
    shown: list[Shown] = [grid_table(("", "who", "right", "on", "state", "file"), rows)]
    reasons = dict.fromkeys(one.unchecked for one in checks.values() if one.unchecked)
    shown += (f"revocation unknown: {reason}" for reason in reasons)
    return CommandAnswer(
        {
            "certificates": [one.as_dict() for one in found],
            "revocations": reduce(or_, checks.values(), chained).as_dict(),
        },
        shown if rows else ["there is no certificate"],
    )


def _state_cell(one: ListedCertificate, wording: Wording) -> str:
    day = f" ({one.ends:%Y-%m-%d})" if one.ends is not None and one.mark in ("✓", "!") else ""
    unchecked = "" if one.checked or one.mark == "✗" else ", revocation unknown"
    return speak(one.state, wording.names.spoken()) + day + unchecked


def _columns(statement: Statement, wording: Wording) -> tuple[str, str, str]:
    facts = dict(wording.statement(statement))
    who = facts.get("subject") or facts["means"]
    rights = "every right" if facts.get("rights") == "*" else facts.get("rights", "")
    if "name" in facts:
        rights = f"is called {facts['name']}"
    limits = [f"{place} {facts[place]}" for place in ("attributes", "where", "when") if place in facts]
    return who, ", ".join([rights, *limits]), facts.get("type") or facts.get("network") or facts.get("tag", "")


@option_class
class _Renew:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    key: KeyOptions
    lifetime: LifetimeOptions
    within: float | None = option(
        "--within",
        type=Duration(_LONGEST, unit="d"),
        metavar="DURATION",
        help="Renew only those that expire within this time (default: all). A plain number is days.",
    )
    grant_again: bool = option(
        "--grant-again", is_flag=True, help="Renew a certificate that is revoked too: its subject gets the right back."
    )
    context: str | None = context_option()
    out: str | None = option("--out", metavar="FILE", help="Write to this file (default: replace each file).")
    overwrite: bool = option("--overwrite", is_flag=True, help="Replace an --out file that exists.")
    dry_run: bool = option("--dry-run", is_flag=True, help="Do everything except write files.")
    output: str = output_option()
    names: NamesOption


@command(
    cert,
    example="""
penstock cert renew certs/*.cert --key acme.key --within 30d
penstock cert renew reader.cert --key acme.key --days 90
""",
)
def renew(session: CommandSession, options: _Renew) -> CommandAnswer:
    """Grant the same rights again, with a new lifetime from now on.

    Every certificate must be signed by the key's principal. The old certificate stays valid until it expires. Brokers
    use the new one when you publish it with `penstock net publish`, when a client shows it, or when they reload their
    files. A certificate that is revoked is refused unless you say --grant-again, because the new one is not revoked.
    Revocations are known from the key's chain of policy events, and from a broker of the certificates' own network, if
    a context or the environment has one.
    """
    if options.out is not None and len(options.files) > 1:
        raise MalformedError("cli.usage", "--out is for one file", hint="leave it out to replace each file")
    for file in (options.out or name for name in options.files):
        check_target(file, overwrite=options.out is None or options.overwrite)
    now, key = session.now, options.key.open()
    wording = Wording(options.names.load(), *find_types(now, *options.files))
    validity = options.lifetime.validity(now)
    latest = None if options.within is None else now + timedelta(seconds=options.within)
    renewed: list[tuple[str, Credentials]] = []
    chained = revoked_in_chains([Path(options.key.key_file).with_suffix(CHAINS)])
    checks = check_files(options.files, wording.names, options.context)
    advice = replace(RenewalAdvice.of(key.principal, *options.files), key=options.key.key_file)
    for file in options.files:
        check = chained | checks[file]
        bag = load_credentials([file])
        due = [one for one in bag.certificates if latest is None or _ends_by(one.statement, latest)]
        if due:
            with within(file):
                if not options.grant_again:
                    _check_not_revoked(due, check, wording, f"to give the right back, {advice.give_back}")
                # A certificate with the same words is the same certificate, and a revocation cannot be undone. If it
                # was issued within this second, the new one ends a second later, unless its end was chosen.
                made = {one.id: renewed_certificate(one, key, validity) for one in due}
                if any(check.of(one.id, one.statement) for one in made.values()):
                    later = options.lifetime.validity(now + timedelta(seconds=1))
                    made = {one.id: renewed_certificate(one, key, later) for one in due}
                _check_not_revoked(made.values(), check, wording, "choose another lifetime, so that it is a new one")
            kept = (made.get(one.id, one) for one in bag.certificates)
            renewed.append((file, Credentials.of(*kept, quorums=bag.quorums)))
    if not options.dry_run:
        for file, bag in renewed:
            write_bytes(options.out or file, as_text(bag.to_sexp()), overwrite=options.out is None or options.overwrite)
    unchecked = dict.fromkeys(warning for one in checks.values() for warning in one.warnings())
    warnings = (*options.lifetime.warnings(), *unchecked)
    warn(*warnings)
    data = {
        "renewed": [
            {"file": options.out or file, "certificates": [statement_data(one.statement) for one in bag.certificates]}
            for file, bag in renewed
        ],
        "written": not options.dry_run,
        "warnings": [warning.as_dict() for warning in warnings],
    }
    done = "would renew" if options.dry_run else "renewed"
    lines = [
        f"{done} {options.out or file}: {wording.line(one.statement)}, {validity_text(one.statement.validity)}"
        for file, bag in renewed
        for one in bag.certificates
    ]
    if renewed and not options.dry_run:
        new = replace(advice, files=tuple(options.out or file for file, _ in renewed))
        lines.append(f"brokers use it when a client shows it, or now if you run `{new.publish}`")
    return CommandAnswer(data, lines or ["no certificate is due"])


def _check_not_revoked(due: Iterable[Certificate], check: RevocationCheck, wording: Wording, hint: str) -> None:
    """Raise `RefusedError` (`cert.revoked`) if one of the certificates is revoked."""
    for one in due:
        found = check.of(one.id, one.statement)
        if found is not None:
            raise RefusedError(
                REVOKED,
                f"{wording.line(one.statement)} was {found.words(wording.who)}",
                hint=hint,
                certificate=one.id,
            )


def renewed_certificate(old: Certificate, key: SigningKey, validity: Validity) -> Certificate:
    """Sign a certificate's statement again, with another period. On-line tests stay.

    Raises `RefusedError` (`cert.wrong-key`).
    """
    statement = old.statement
    period = replace(validity, online=statement.validity.online)
    return sign_certificate(replace(statement, validity=period), key)


def _ends_by(statement: Statement, latest: datetime) -> bool:
    return statement.validity.ends is not None and statement.validity.ends <= latest
