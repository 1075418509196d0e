"""`penstock role`: role policies as files, and a domain's roles in a store."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    option,
    option_class,
    output_option,
)
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.files import read_bytes, read_sexp, within, write_bytes
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.options import (
    WHO,
    KeyOptions,
    NamesOption,
    OutputFile,
    open_key,
    passphrase_option,
)
from penstock.apps.cli.shared.session import CommandSession, Verbs, speak
from penstock.apps.cli.shared.stores import check_lasting, dry_run_option
from penstock.apps.cli.shared.terminal import Shown, grid_table
from penstock.authority.role_book import RoleBook
from penstock.codec.yaml_text import read_yaml
from penstock.crypto import Signer, SigningKey
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.model.instants import parse_instant
from penstock.model.principals import Principal
from penstock.model.values import Scalar, Value
from penstock.roles.credentials import accepted, certify, read_role_certificate
from penstock.roles.engine import (
    ActivateRole,
    Appoint,
    CredentialRecord,
    DeactivateRole,
    DropCredential,
    EndSession,
    OpenSession,
    RelyOnRecord,
    ReplacePolicy,
    RoleChange,
    RoleFounding,
    RoleOutcome,
    SetFact,
    WithdrawAppointment,
)
from penstock.roles.explain import explain_activation, lost_with
from penstock.roles.language import (
    CredentialKind,
    DomainDeclaration,
    ParameterKind,
    RoleParameter,
    format_policy,
    parse_policy,
    place,
)
from penstock.roles.lint import lint_policy
from penstock.roles.scenarios import RoleStepResult, describe_privilege, read_role_scenario, run_roles
from penstock.store.ledgers.ledgers import Store
from penstock.trust.signed import sign_value


@click.group(cls=Verbs)
def role() -> None:
    """Check role policies, and activate, appoint and revoke by them.

    State is kept in a store. With keys, changes are signed. Without them, whoever can write to the store acts for the
    domain.
    """


def _text(file: str) -> str:
    try:
        return read_bytes(file).decode()
    except UnicodeDecodeError:
        raise MalformedError("role.syntax", f"`{file}` is not text in UTF-8") from None


# ----------------------------------------------------------------------------------------------------------------------
# Files.


@option_class
class _Check:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    output: str = output_option()


@command(role, "check", example="penstock role check examples/roles/hospital/hospital.roles")
def check(options: _Check) -> CommandAnswer:
    """Find mistakes in role policies.

    These are errors such as unbound parameters, and then unreachable roles, cycles, conditions that can never be true,
    and separations of duty that a rule defeats.
    """
    findings: list[dict[str, object]] = []
    for file in options.files:
        source = _text(file)
        with within(file):
            policy = parse_policy(source)
        for one in lint_policy(policy):
            line, column = place(source, one.at)
            findings.append(
                {
                    "file": file,
                    "line": line,
                    "column": column,
                    "code": one.code,
                    "message": one.message,
                    "hint": one.hint,
                }
            )
    lines = [f"{one['file']}:{one['line']}:{one['column']}: {one['message']} [{one['code']}]" for one in findings]
    error = RefusedError("role.findings", counted(len(findings), "finding")) if findings else None
    return CommandAnswer({"findings": findings}, lines or ["✓ no findings"], error)


@option_class
class _Format:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    check: bool = option("--check", is_flag=True, help="Write nothing; exit with 1 if a file would change.")
    output: str = output_option()


@command(role, "fmt", example="penstock role fmt --check hospital.roles")
def fmt(options: _Format) -> CommandAnswer:
    """Write role policies in their canonical form. Comments are kept."""
    changed = []
    for file in options.files:
        source = _text(file)
        with within(file):
            written = format_policy(parse_policy(source))
        if written != source:
            changed.append(file)
            if not options.check:
                write_bytes(file, written.encode(), overwrite=True)
    verb = "would change" if options.check else "changed"
    error = RefusedError("role.unformatted", "run `penstock role fmt`") if changed and options.check else None
    return CommandAnswer({"changed": changed}, [f"{verb} {file}" for file in changed] or ["✓ nothing to change"], error)


@option_class
class _Test:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    output: str = output_option()


@command(role, "test", example="penstock role test examples/roles/numberplate/scenario.yaml")
def test(options: _Test) -> CommandAnswer:
    """Run scenarios: steps, and the roles, privileges and refusals expected after each. Nothing is saved."""
    data: list[dict[str, object]] = []
    lines: list[str] = []
    failed: list[str] = []
    for file in options.files:
        folder = Path(file).parent
        with within(file):
            scenario = read_role_scenario(read_yaml(_text(file)), lambda name, here=folder: _text(str(here / name)))  # type: ignore[misc]
            results = [*run_roles(scenario)]
        different = [one for one in results if one.differences]
        failed += [f"step {one.number} of {file}" for one in different]
        data.append({"file": file, "title": scenario.title, "steps": len(results), "failed": _differences(different)})
        lines.append(f"{scenario.title}: {len(results) - len(different)} of {len(results)} steps as expected")
        for one in different:
            lines.append(f"  {one.number}. {one.step.verb} {one.step.fields[one.step.verb]}")
            for name, wanted, found in one.differences:
                lines += [
                    f"     {name}: expected {_plain(wanted)}",
                    f"     {' ' * len(name)}     found {_plain(found)}",
                ]
    error = RefusedError("role.unexpected", f"{failed[0]} differs from what is expected") if failed else None
    return CommandAnswer({"passed": not failed, "scenarios": data}, lines, error)


def _differences(results: list[RoleStepResult]) -> list[dict[str, object]]:
    return [
        {"step": one.number, "name": name, "expected": wanted, "found": found}
        for one in results
        for name, wanted, found in one.differences
    ]


def _plain(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# ----------------------------------------------------------------------------------------------------------------------
# The role book in a store.


@option_class
class RoleBookOptions:
    """Options for the role book that a command is about."""

    store_url: str | None = option(
        "--store",
        metavar="STORE",
        envvar="PENSTOCK_STORE",
        help="Use the roles in this store, such as sqlite:roles.db (default: $PENSTOCK_STORE).",
    )
    ledger: str = option(
        "--ledger", metavar="NAME", default="roles", show_default=True, help="Use this ledger of the store."
    )
    names: NamesOption

    def store(self, *, create: bool = False) -> Store:
        """Open the store. Raises `MalformedError` (`cli.usage`), and as `open_store`."""
        # SQLAlchemy takes half a second to import, which commands about files should not pay.
        from penstock.store.ledgers.urls import open_store  # noqa: PLC0415

        if self.store_url is None:
            raise MalformedError(
                "cli.usage", "no store is given", hint="give --store sqlite:PATH, or set PENSTOCK_STORE"
            )
        check_lasting(self.store_url)
        return open_store(self.store_url, create=create)

    @contextmanager
    def opened(self, now: datetime, signer: Signer | None = None) -> Iterator[tuple[RoleBook, NameBook]]:
        """Open the role book at a time. Raises as `store` and `RoleBook`."""
        names = self.names.load()
        with self.store() as store:
            book = RoleBook(store.ledger(self.ledger), signer)
            book.engine.advance(now)
            yield book, names


def _why_option() -> Any:
    return option("--why", default="", metavar="TEXT", help="Record this reason in the log.")


@option_class
class _SigningOptions:
    """Options for the key that signs changes, if there is one."""

    key_file: str | None = option(
        "--key",
        metavar="FILE",
        help="Sign with this private key: the domain's, or that of the principal that acts (default: do not sign).",
    )
    passphrase_file: str | None = passphrase_option()

    def open(self) -> SigningKey | None:
        """Read the key, if one is given. Raises as `open_key`."""
        return None if self.key_file is None else open_key(self.key_file, self.passphrase_file)


@option_class
class _Init:
    file: str = argument()
    domain: str = option("--domain", required=True, help="The principal of the domain whose roles these are.", **WHO)
    why: str = _why_option()
    signing: _SigningOptions
    dry_run: bool = dry_run_option()
    book: RoleBookOptions
    output: str = output_option()


@command(role, "init", example="penstock role init met.roles --domain met --key met.key --store sqlite:roles.db")
def init(session: CommandSession, options: _Init) -> CommandAnswer:
    """Create a role book with the policy in FILE.

    Other domains in the policy that have no principal are looked up among your names. With --key, all changes must be
    signed. Without it, whoever can write to the store acts for the domain.
    """
    signer = options.signing.open()
    names = options.book.names.load()
    source = _text(options.file)
    domain = names.principal(options.domain)
    with within(options.file):
        others = _principals(source, names)
        founding = RoleFounding(domain, source, others)
        founding.engine()
    if not options.dry_run:
        with options.book.store(create=True) as store:
            RoleBook.create(store.ledger(options.book.ledger), founding, session.now, options.why, signer)
    data = {"domain": str(domain), "names": {name: str(who) for name, who in others}, "written": not options.dry_run}
    return CommandAnswer(data, [f"{'would create' if options.dry_run else 'created'} roles of {names.show(domain)}"])


@option_class
class _Change:
    """Options that all changes have."""

    why: str = _why_option()
    signing: _SigningOptions
    dry_run: bool = dry_run_option()
    book: RoleBookOptions
    output: str = output_option()

    @contextmanager
    def opened(self, now: datetime) -> Iterator[tuple[RoleBook, NameBook, Principal]]:
        """Open the role book. Yield it, the names, and who acts: the holder of the key, or the domain."""
        signer = self.signing.open()
        with self.book.opened(now, signer) as (book, names):
            yield book, names, book.founding.domain if signer is None else signer.principal

    def apply(
        self, book: RoleBook, names: NameBook, who: Principal, now: datetime, *changes: RoleChange
    ) -> CommandAnswer:
        """Apply changes, or only check them; answer with what they caused."""
        outcomes = []
        for change in changes:
            if not self.dry_run:
                outcomes.append(book.change(change, who, now, self.why))
            else:
                book.engine.check(change)
                outcomes.append(book.engine.apply(change))
        return self._answer(outcomes, names)

    def _answer(self, outcomes: list[RoleOutcome], names: NameBook) -> CommandAnswer:
        record = next((one.record for one in reversed(outcomes) if one.record is not None), None)
        ended = [one for outcome in outcomes for one in outcome.ended]
        notices = [one for outcome in outcomes for one in outcome.notices]
        lines = [] if record is None else [f"record {record.id}: {_call(record)} for {names.show(record.principal)}"]
        # Arguments that are principals are written in full.
        spoken = {str(principal): petname for principal, petname in names.petnames.items()}
        lines += [speak(f"ended: record {one.record.id}, {_call(one.record)}: {one.reason}", spoken) for one in ended]
        lines += [f"tell {names.show(domain)} that record {identifier} has ended" for domain, identifier in notices]
        data = {
            "record": None if record is None else record.as_dict(),
            "ended": [{**one.record.as_dict(), "reason": one.reason} for one in ended],
            "notices": [{"domain": str(domain), "record": identifier} for domain, identifier in notices],
            "written": not self.dry_run,
        }
        return CommandAnswer(data, lines or ["done"])


@option_class
class _Replace:
    file: str = argument()
    change: _Change


@command(role, "replace", example="penstock role replace met.roles --dry-run --store sqlite:roles.db")
def replace(session: CommandSession, options: _Replace) -> CommandAnswer:
    """Replace the policy of a role book by the one in FILE.

    Active roles stay if the new policy has the same rule for them. With --dry-run, see what would end.
    """
    source = _text(options.file)
    with options.change.opened(session.now) as (book, names, by):
        with within(options.file):
            change = ReplacePolicy(source, _principals(source, names))
            book.engine.check(change)
        return options.change.apply(book, names, by, session.now, change)


def _principals(source: str, names: NameBook) -> tuple[tuple[str, Principal], ...]:
    """Look up the domains of a policy that have no principal."""
    wanted = [one for one in parse_policy(source).statements if isinstance(one, DomainDeclaration)]
    return tuple((one.name, names.principal(one.name)) for one in wanted if one.principal is None)


@option_class
class _Show:
    who: str | None = argument(required=False, metavar="[WHO]")
    book: RoleBookOptions
    output: str = output_option()


@command(role, "show", example="penstock role show smith --store sqlite:roles.db")
def show(session: CommandSession, options: _Show) -> CommandAnswer:
    """Show sessions, active roles, appointments and privileges: of WHO, or of everybody."""
    with options.book.opened(session.now) as (book, names):
        engine = book.engine
        only = None if options.who is None else names.principal(options.who)
        records = [one for one in engine.records() if only in (None, one.principal)]
        people = list(dict.fromkeys(one.principal for one in records))
        held = [(who, one) for who in people for one in engine.privileges(who)]
        shown_names = {who: names.show(who) for who in (*people, *(one.issuer for one in records))}
        privileges = [(shown_names[who], describe_privilege(one, shown_names)) for who, one in held]
        rows = [_row(one, names, book.founding.domain) for one in records]
        sessions = {name: str(who) for name, who in engine.sessions().items() if only in (None, who)}
        due = engine.next_due
    parts: list[Shown] = [grid_table(("record", "kind", "what", "who", "session", "until"), rows)]
    if privileges:
        parts += ["", grid_table(("who", "may"), privileges)]
    data = {
        "sessions": sessions,
        "records": [one.as_dict() for one in records],
        "privileges": [
            {"who": str(who), "privilege": text} for (who, _), (_, text) in zip(held, privileges, strict=True)
        ],
        "next_due": None if due is None else due.isoformat(),
    }
    return CommandAnswer(data, parts if rows else ["nothing is active, and nobody is appointed"])


@option_class
class _Export:
    key: KeyOptions
    out: OutputFile
    book: RoleBookOptions
    output: str = output_option()


@command(role, "export", example="penstock role export --key met.key --out met.history --store sqlite:roles.db")
def export(session: CommandSession, options: _Export) -> CommandAnswer:
    """Sign the policy and all changes, for pipelines: `roles` in a policy file."""
    options.out.check()
    with options.book.opened(session.now) as (book, _names):
        stored = book.exported()
    signed = sign_value(stored, options.key.open())
    return options.out.answer(signed.to_sexp(), {"domain": str(stored.founding.domain), "changes": len(stored.changes)})


@option_class
class _Explain:
    name: str = argument(metavar="ROLE")
    arguments: tuple[str, ...] = argument(nargs=-1, metavar="[ARGUMENT]...")
    session_id: str = option("--session", required=True, metavar="ID", help="Ask for this session.")
    book: RoleBookOptions
    output: str = output_option()


@command(role, "explain", example="penstock role explain tracker 'AE05 XYZ' --session desk --store sqlite:roles.db")
def explain(session: CommandSession, options: _Explain) -> CommandAnswer:
    """Explain why ROLE is active or not, what is missing to activate it, and what would be lost with it."""
    with options.book.opened(session.now) as (book, names):
        parameters = _parameters(book, CredentialKind.ROLE, options.name)
        arguments = _arguments(options.arguments, parameters, names)
        found = explain_activation(book.engine, options.session_id, options.name, arguments, names.petnames)
        lost = () if found.record is None else lost_with(book.engine, found.record.support)
    lines = [*found.lines()]
    if lost:
        lines += ["with it would be lost:", *(f"  {_call(one)} (record {one.id})" for one in lost)]
    data = {
        "active": found.record is not None,
        "record": None if found.record is None else found.record.id,
        "refused": found.refused,
        "rules": [
            {
                "line": attempt.line,
                "conditions": [
                    {"condition": one.condition, "satisfied": one.satisfied, "member": one.member, "reason": one.reason}
                    for one in attempt.conditions
                ],
            }
            for attempt in found.attempts
        ],
        "lost": [one.as_dict() for one in lost],
    }
    return CommandAnswer(data, lines)


@option_class
class _Activate:
    name: str = argument(metavar="ROLE")
    arguments: tuple[str, ...] = argument(nargs=-1, metavar="[ARGUMENT]...")
    who: str = option("--as", required=True, help="Activate it for this principal.", **WHO)
    session_id: str | None = option(
        "--session", metavar="ID", help="Use this session, and open it if needed (default: WHO)."
    )
    change: _Change


@command(role, "activate", example="penstock role activate tracker 'AE05 XYZ' --as smith --store sqlite:roles.db")
def activate(session: CommandSession, options: _Activate) -> CommandAnswer:
    """Activate ROLE in a session. An argument `_` is found from the conditions."""
    with options.change.opened(session.now) as (book, names, _by):
        principal = names.principal(options.who)
        identifier = options.session_id or options.who[:64]
        parameters = _parameters(book, CredentialKind.ROLE, options.name)
        change = ActivateRole(identifier, options.name, _arguments(options.arguments, parameters, names))
        known = book.engine.session(identifier)
        if known not in (None, principal):
            raise RefusedError(
                "role.session", f"session `{identifier}` is not one of {options.who}", hint="use another"
            )
        opening: tuple[RoleChange, ...] = () if known is not None else (OpenSession(identifier, principal),)
        return options.change.apply(book, names, principal, session.now, *opening, change)


@option_class
class _End:
    session_id: str = argument(metavar="SESSION")
    change: _Change


@command(role, "end", example="penstock role end desk --store sqlite:roles.db")
def end(session: CommandSession, options: _End) -> CommandAnswer:
    """End SESSION, and all its active roles."""
    with options.change.opened(session.now) as (book, names, by):
        who = book.engine.session(options.session_id) or by
        return options.change.apply(book, names, who, session.now, EndSession(options.session_id))


@option_class
class _Appoint:
    name: str = argument(metavar="APPOINTMENT")
    arguments: tuple[str, ...] = argument(nargs=-1, metavar="[ARGUMENT]...")
    holder: str = option("--to", required=True, help="Appoint this principal.", **WHO)
    who: str | None = option(
        "--as", help="Appoint as this principal (default: the key's holder, or the domain).", **WHO
    )
    until: str | None = option("--until", metavar="TIME", help="The last instant of the appointment (default: no end).")
    change: _Change


@command(role, "appoint", example="penstock role appoint badge 7 --to smith --store sqlite:roles.db")
def appoint(session: CommandSession, options: _Appoint) -> CommandAnswer:
    """Appoint a principal."""
    with options.change.opened(session.now) as (book, names, holder):
        by = holder if options.who is None else names.principal(options.who)
        parameters = _parameters(book, CredentialKind.APPOINTMENT, options.name)
        values = tuple(one for one in _arguments(options.arguments, parameters, names) if one is not None)
        until = None if options.until is None else parse_instant(options.until)
        change = Appoint(options.name, names.principal(options.holder), by, values, until)
        return options.change.apply(book, names, by, session.now, change)


@option_class
class _Issue:
    record: str = argument()
    domain: str = option("--to", required=True, help="The domain that relies on it, and is named when it ends.", **WHO)
    key: KeyOptions
    out: OutputFile
    book: RoleBookOptions
    output: str = output_option()


@command(
    role, "issue", example="penstock role issue 1 --to met --key court.key --out order.cert --store sqlite:court.db"
)
def issue(session: CommandSession, options: _Issue) -> CommandAnswer:
    """Sign the certificate of a role or an appointment for another domain, by the id RECORD."""
    options.out.check()
    key = options.key.open()
    with options.book.opened(session.now, key) as (book, names):
        found = book.engine.record(options.record)
        if found is None:
            raise RefusedError(
                "role.no-record", f"there is no valid record `{options.record}`", hint="`role show` lists them"
            )
        signed = certify(found, key)
        if not options.out.dry_run:
            book.change(RelyOnRecord(found.id, names.principal(options.domain)), found.issuer, session.now)
        return options.out.answer(signed.to_sexp(), {"record": found.as_dict()})


@option_class
class _Accept:
    file: str = argument()
    change: _Change


@command(role, "accept", example="penstock role accept order.cert --store sqlite:met.db")
def accept(session: CommandSession, options: _Accept) -> CommandAnswer:
    """Accept another domain's certificate of a role or an appointment, so that rules can require it."""
    value = read_sexp(options.file)
    with within(options.file):
        certificate = read_role_certificate(value)
    with options.change.opened(session.now) as (book, names, by):
        change = accepted(certificate, session.now)
        return options.change.apply(book, names, by, session.now, change)


@option_class
class _Revoke:
    record: str = argument()
    who: str | None = option(
        "--as", help="Withdraw an appointment as this principal (default: the key's holder, or the domain).", **WHO
    )
    issuer: str | None = option("--issuer", help="Drop a record of this other domain, which has ended there.", **WHO)
    change: _Change


@command(role, "revoke", example="penstock role revoke 3 --store sqlite:roles.db")
def revoke(session: CommandSession, options: _Revoke) -> CommandAnswer:
    """Withdraw the appointment, or deactivate the role, with the id RECORD, and everything that relies on it."""
    with options.change.opened(session.now) as (book, names, holder):
        by = holder if options.who is None else names.principal(options.who)
        found = book.engine.record(options.record)
        change: RoleChange = WithdrawAppointment(options.record, by)
        if found is not None and found.kind is CredentialKind.ROLE:
            change = DeactivateRole(options.record)
        if options.issuer is not None:
            change = DropCredential(names.principal(options.issuer), options.record)
        return options.change.apply(book, names, by, session.now, change)


@option_class
class _Fact:
    name: str = argument(metavar="FACT")
    arguments: tuple[str, ...] = argument(nargs=-1, metavar="[ARGUMENT]...")
    value: str = option("--set", metavar="VALUE", default="true", show_default=True, help="The value, or `unknown`.")
    change: _Change


@command(role, "fact", example="penstock role fact case_assignment smith C7 --set false --store sqlite:roles.db")
def fact(session: CommandSession, options: _Fact) -> CommandAnswer:
    """Record the value of FACT: whether a look-up is true for these arguments, or a fact's own value."""
    with options.change.opened(session.now) as (book, names, by):
        declared = book.engine.policy.facts().get(options.name)
        parameters = () if declared is None else declared.parameters
        values = tuple(one for one in _arguments(options.arguments, parameters, names) if one is not None)
        kind = ParameterKind.BOOLEAN if declared is None or declared.kind is None else declared.kind
        value = None if options.value == "unknown" else _value(options.value, kind, names)
        change = SetFact(options.name, value, values)
        return options.change.apply(book, names, by, session.now, change)


# ----------------------------------------------------------------------------------------------------------------------
# Values.


def _parameters(book: RoleBook, kind: CredentialKind, name: str) -> tuple[RoleParameter, ...]:
    found = (one for one in book.engine.policy.credentials() if (one.kind, one.by, one.name) == (kind, "self", name))
    return next((one.parameters for one in found), ())


def _arguments(texts: tuple[str, ...], parameters: tuple[RoleParameter, ...], names: NameBook) -> tuple[Scalar, ...]:
    kinds = [one.kind for one in parameters] + [ParameterKind.STRING] * len(texts)
    return tuple(None if text == "_" else _value(text, kind, names) for text, kind in zip(texts, kinds, strict=False))


def _value(text: str, kind: ParameterKind, names: NameBook) -> Value:
    try:
        match kind:
            case ParameterKind.PRINCIPAL:
                return str(names.principal(text))
            case ParameterKind.INTEGER:
                return int(text)
            case ParameterKind.FLOAT:
                return float(text)
            case ParameterKind.BOOLEAN:
                return {"true": True, "false": False}[text.lower()]
            case ParameterKind.TIMESTAMP:
                return parse_instant(text)
            case ParameterKind.STRING:
                return text
    except PenstockError:
        raise
    except (ValueError, KeyError):
        raise MalformedError("role.kind", f"`{text[:80]}` is not {kind.kind.phrase}") from None


def _call(record: CredentialRecord) -> str:
    listed = ", ".join(map(str, record.arguments))
    return f"{record.name}({listed})" if record.arguments else record.name


def _row(record: CredentialRecord, names: NameBook, domain: Principal) -> tuple[str, ...]:
    by = "" if record.issuer == domain else f" by {names.show(record.issuer)}"
    until = "" if record.until is None else record.until.isoformat()
    return record.id, record.kind, f"{_call(record)}{by}", names.show(record.principal), record.session, until
