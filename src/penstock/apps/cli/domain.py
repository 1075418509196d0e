"""`penstock domain`: plan a domain of authorization components, check the plan, run it, and change it while it runs."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from penstock.apps.cli.certs.grants import LifetimeOptions
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.component_process import (
    component_keys,
    host_components,
    host_in_processes,
    note_component,
    open_plan,
    show_component_event,
)
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.files import SECRET, as_text, read_bytes, read_sexp, within, write_bytes
from penstock.apps.cli.shared.names import remembering
from penstock.apps.cli.shared.options import Duration, KeyOptions, OutputFile, passphrase_option
from penstock.apps.cli.shared.session import CommandSession, Verbs
from penstock.apps.cli.shared.terminal import Shown, fact_table, grid_table, show
from penstock.apps.component_host import is_shared, plan_fabric
from penstock.authority.components.administration.administration_point import AdministrationComponent
from penstock.authority.components.administration.live_domain import (
    LiveDomain,
    RoleDifference,
    read_live_domain,
    role_differences,
)
from penstock.authority.components.component_factory import administration_settings, role_configurations
from penstock.authority.components.exchange.certificates import ComponentCertificate
from penstock.authority.components.exchange.topic_keys import TOPIC_SECRET_BYTES
from penstock.authority.components.exchange.topics import ComponentKind, TopicInstance
from penstock.authority.components.information.attribute_mapping import mapping_table, review_mapping, sign_mapping
from penstock.authority.components.plans.domain_check import PlanFinding, PlanLevel, check_domain
from penstock.authority.components.plans.domain_plan import (
    EXAMPLE,
    DomainPlan,
    LoadedPlan,
    read_domain_plan,
)
from penstock.authority.components.plans.nats_permissions import domain_permissions, server_configuration
from penstock.codec.sexp import parse_canonical
from penstock.crypto import PublicKey, SigningKey, new_key, private_key_to_sexp, read_key
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.fabric import SystemClock

_LONGEST: Final = 3_600
#: the id under which `penstock domain reconfigure` is a PAP
_RECONFIGURES: Final = "reconfigure"


@click.group(cls=Verbs)
def domain() -> None:
    """Plan, check, run and change a domain of authorization components.

    To run the access control service of a domain, use `penstock acs serve`.
    """


@option_class
class _Check:
    files: tuple[str, ...] = argument(nargs=-1, metavar="FILE...")
    show_example: bool = option("--example", is_flag=True, help="Print a domain plan with all keys.")
    output: str = output_option()


@command(
    domain,
    example="""
penstock domain check --example > bank.toml
penstock domain check bank.toml
penstock domain check bank.toml machines.toml -o json
""",
)
def check(options: _Check) -> CommandAnswer | None:
    """Check the domain plan in the first FILE, before anything runs. Other files have more components of the domain.

    Reports roles that nobody can take, topics without a writer or a reader, requests without an answer, attributes
    that policies need and nobody provides, policies that no decision point gets, missing combining algorithms, and
    topics-lists that separate components that depend on each other. The exit status is 1 if there are problems.
    Keys and the content of sources are not read.
    """
    if options.show_example:
        show(EXAMPLE.rstrip("\n").split("\n"))
        return None
    if not options.files:
        raise MalformedError(
            "cli.usage", "missing argument `FILE`", hint="`penstock domain check --example` prints one"
        )
    loaded = open_plan(options.files[0])
    findings = check_domain(loaded, [open_plan(file) for file in options.files[1:]])
    problems = [one for one in findings if one.level is PlanLevel.PROBLEM]
    error = None
    if problems:
        error = RefusedError("plan.problems", f"{loaded.path}: {counted(len(problems), 'problem')}")
    data = {
        "ok": not problems,
        "domain": loaded.plan.name,
        "findings": [one.as_dict() for one in findings],
        "roles": {str(kind): [*names] for kind, names in loaded.plan.component_roles().items() if names},
    }
    return CommandAnswer(data, _checked(loaded.path, loaded.plan, findings), error)


def _checked(path: str, plan: DomainPlan, findings: Sequence[PlanFinding]) -> Iterator[Shown]:
    for one in findings:
        yield f"{'✗' if one.level is PlanLevel.PROBLEM else '!'} {one.where}: {one.message} ({one.code})"
        if one.hint:
            yield f"    {one.hint}"
    if all(one.level is not PlanLevel.PROBLEM for one in findings):
        yield f"✓ {path} plans a domain that can run"
    roles = plan.component_roles()
    yield fact_table(
        [
            ("domain", plan.name),
            *((f"roles of {kind}s", ", ".join(names)) for kind, names in roles.items() if names),
            *(
                (f"{kind}s", ", ".join(one.id for one in plan.components.values() if one.kind is kind))
                for kind in ComponentKind
                if any(one.kind is kind for one in plan.components.values())
            ),
        ],
        indent=2,
    )


@option_class
class _NatsPermissions:
    file: str = argument()
    others: tuple[str, ...] = argument(nargs=-1, required=False, metavar="[FILE]...")
    output: str = output_option()


@command(
    domain,
    "nats-permissions",
    example="""
penstock domain nats-permissions bank.toml > bank-users.conf
penstock domain nats-permissions bank.toml desk-at-bank.toml -o json
""",
)
def nats_permissions(options: _NatsPermissions) -> CommandAnswer:
    """Print a configuration of nats-server that lets each component of the plan in FILE use its topics and no others.

    Other files have more components of the domain. A component has a user to join and one to work. Put their public
    nkeys in place of `NKEY_OF_ID_JOINING` and `NKEY_OF_ID`, and set `nkey` and `inbox` in `[fabric.joining]` and
    `[fabric.nats]` of the file that runs it. Nothing but the files is read.
    """
    plans: list[DomainPlan] = []
    for file in (options.file, *options.others):
        data = read_bytes(file)
        with within(file):
            plans.append(read_domain_plan(data))
            if plans[-1].name != plans[0].name:
                raise MalformedError("plan.value", f"this file is of domain `{plans[-1].name}`, not `{plans[0].name}`")
    found = domain_permissions(plans[0], plans[1:])
    data_ = {"domain": plans[0].name, "users": [one.as_dict() for one in found]}
    return CommandAnswer(data_, server_configuration(plans[0].name, found))


@option_class
class _NewKeys:
    file: str = argument()
    dry_run: bool = option("--dry-run", is_flag=True, help="Write nothing.")
    output: str = output_option()


@command(domain, "new-keys", example="penstock domain new-keys bank.toml")
def new_keys(session: CommandSession, options: _NewKeys) -> CommandAnswer:
    """Make the keys that components in FILE lack, and remember each principal under its component's id.

    The names are written to the file that `names` in FILE names. Keys that exist are not changed. If FILE names a
    `topic_secret` that does not exist, it is made too.
    """
    data = read_bytes(options.file)
    with within(options.file):
        plan = read_domain_plan(data)
        if not isinstance(plan.names, str):
            hint = "with a table in the plan, make keys with `penstock key new`"
            raise MalformedError("plan.value", '`names` must be a file, such as "names.toml"', hint=hint)
    folder = Path(options.file).parent
    found: list[dict[str, object]] = []
    for one in plan.components.values():
        file = folder / one.key
        made = None
        if file.exists():
            stored = read_key(read_sexp(str(file)))
            principal = stored.principal if isinstance(stored, PublicKey) else stored.public.principal
        else:
            made = new_key(session.random)
            principal = made.principal
        with remembering(one.id, principal, str(folder / plan.names), replace=False, dry_run=options.dry_run):
            if made is not None and not options.dry_run:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(str(file), as_text(private_key_to_sexp(made)), mode=SECRET, for_key=True)
        found.append({"component": one.id, "file": str(file), "principal": str(principal), "new": made is not None})
    secret = folder / plan.topic_secret
    new_secret = bool(plan.topic_secret) and not secret.exists()
    if new_secret and not options.dry_run:
        secret.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(str(secret), session.random(TOPIC_SECRET_BYTES).hex().encode() + b"\n", mode=SECRET)
    done = "would write" if options.dry_run else "wrote"
    shown = [f"{done if one['new'] else 'kept'} {one['file']}  {one['principal']}" for one in found]
    if plan.topic_secret:
        shown.append(f"{done if new_secret else 'kept'} {secret}")
    return CommandAnswer({"keys": found, "written": not options.dry_run}, shown)


@option_class
class _SignMapping:
    file: str = argument(metavar="TABLE")
    number: int = option(
        "--number",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Number the versions of a table. Decision points refuse a smaller number than the last.",
    )
    lifetime: LifetimeOptions
    key: KeyOptions
    out: OutputFile
    output: str = output_option()


@command(
    domain, "sign-mapping", example="penstock domain sign-mapping partner.toml --key pap.key --out partner.mapping"
)
def sign_mapping_(session: CommandSession, options: _SignMapping) -> CommandAnswer:
    """Sign the table in a file that says what attributes of another domain's subjects mean here.

    One of the plan's `reviewers` must review it before decision points use it: `penstock domain review-mapping`.
    """
    data = read_bytes(options.file)
    with within(options.file):
        validity = options.lifetime.validity(session.now)
        signed = sign_mapping(data, options.number, session.now, options.key.open(), validity)
    return options.out.answer(parse_canonical(signed), {"number": options.number, "valid": str(validity)})


@option_class
class _ReviewMapping:
    file: str = argument(metavar="MAPPING")
    key: KeyOptions
    out: OutputFile
    output: str = output_option()


@command(
    domain,
    "review-mapping",
    example="penstock domain review-mapping partner.mapping --key partner-pap.key --out partner.mapping --overwrite",
)
def review_mapping_(session: CommandSession, options: _ReviewMapping) -> CommandAnswer:
    """Sign that you have reviewed the table in a signed mapping. It is shown; use --dry-run to read it first."""
    data = read_bytes(options.file)
    with within(options.file):
        table = mapping_table(data)
        signed = review_mapping(data, session.now, options.key.open())
    return options.out.answer(parse_canonical(signed), {"table": table}, table.splitlines())


# ----------------------------------------------------------------------------------------------------------------------
# A domain that runs.


@option_class
class _Up:
    file: str = argument()
    processes: bool = option(
        "--processes", is_flag=True, help="Run each component in a process of its own (default: all in this process)."
    )
    passphrase_file: str | None = passphrase_option()
    output: str = output_option()


@command(
    domain,
    example="""
penstock domain up bank.toml
penstock domain up bank.toml --processes
""",
)
def up(options: _Up) -> CommandAnswer | None:
    """Run all components of the domain plan in FILE, until it is stopped.

    The plan is checked first, and problems stop the start. A line is printed for each component that has joined. With
    --processes, the plan must name a fabric that connects processes.
    """
    loaded = open_plan(options.file)
    problems = [one for one in check_domain(loaded) if one.level is PlanLevel.PROBLEM]
    if problems:
        hint = f"`penstock domain check {options.file}` shows all of them"
        raise RefusedError("plan.problems", f"{problems[0].where}: {problems[0].message}", hint=hint)
    if not options.processes:
        asyncio.run(host_components(loaded, (), options.passphrase_file))
        return None
    if not is_shared(loaded):
        raise MalformedError("cli.usage", "--processes needs a fabric", hint="add `[fabric.nats]` to the plan")

    def started(id_: str) -> None:
        show_component_event("started", f"started {id_}", component=id_)

    asyncio.run(host_in_processes(loaded, options.passphrase_file, started))
    return None


@option_class
class _Show:
    file: str = argument()
    output: str = output_option()


@command(domain, "show", example="penstock domain show bank.toml")
def show_live(options: _Show) -> CommandAnswer:
    """Show the components that have joined the domain of FILE, with their roles and topics, as its PAPs see them.

    A component that was killed is shown as gone when the domain's `lease` (default: 30 s) has run out. The components
    are read from the fabric that the plan names. Nothing is changed.
    """
    loaded = open_plan(options.file)
    live = asyncio.run(_live(loaded))
    planned = set(loaded.plan.components) - {one.id for one in loaded.plan.components.values() if one.kind == "PAP"}
    absent = sorted(planned - live.components.keys() - live.missed.keys())
    data = {
        "domain": loaded.plan.name,
        "configuration": live.number,
        "components": [_member(one) for one in live.components.values()],
        "absent": absent,
        "missed": {id_: {"code": code, "since": _moment(time)} for id_, (code, time) in live.missed.items()},
        "pending": {str(number): _moment(expected) for number, expected in live.pending.items()},
        "refused": live.refused,
    }
    rows = [
        (one.id, one.kind, one.role_name, one.home, _topics(one.topics.write), _topics(one.topics.read))
        for one in live.components.values()
    ]

    def shown() -> Iterator[Shown]:
        yield grid_table(("component", "kind", "role", "home", "writes", "reads"), rows)
        yield f"configuration {live.number} of {loaded.plan.name}, {counted(len(rows), 'component')}"
        for id_, (code, time) in live.missed.items():
            yield f"gone since {_moment(time)}: {id_} ({code})"
        if absent:
            yield f"planned, but not there: {', '.join(absent)}"
        for number, expected in live.pending.items():
            yield f"reconfiguration {number} is under way, expected {_moment(expected)}"
        if live.refused:
            yield f"{counted(live.refused, 'sample')} of others on CONF"

    return CommandAnswer(data, shown())


async def _live(loaded: LoadedPlan) -> LiveDomain:
    _needs_shared(loaded)
    async with plan_fabric(loaded) as fabric:
        return await read_live_domain(fabric, administration_settings(loaded), SystemClock().now())


def _needs_shared(loaded: LoadedPlan) -> None:
    if not is_shared(loaded):
        message = "all components of this plan run in one process, which nobody else can see"
        raise MalformedError("cli.usage", message, hint="add `[fabric.nats]` to the plan")


def _topics(those: Iterable[TopicInstance]) -> str:
    return " ".join(map(str, sorted(those)))


def _member(one: ComponentCertificate) -> dict[str, object]:
    return {
        "id": one.id,
        "kind": str(one.kind),
        "role": one.role_name,
        "home": one.home,
        "principal": str(one.principal),
        "since": one.since,
        "write": [str(topic) for topic in sorted(one.topics.write)],
        "read": [str(topic) for topic in sorted(one.topics.read)],
    }


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


@option_class
class _Reconfigure:
    file: str = argument()
    who: str | None = option(
        "--as", metavar="ID", help="Act with the key of this PAP of the plan (default: the first one)."
    )
    notice: float = option(
        "--notice",
        type=Duration(_LONGEST),
        default="1s",
        show_default=True,
        metavar="DURATION",
        help="Expect components to apply it this long from now, or when their leases end if that is later: requests "
        "that are sent after that wait for it.",
    )
    reason: str = option("--reason", default="", metavar="TEXT", help="Say why, for the other PAPs.")
    dry_run: bool = option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
    passphrase_file: str | None = passphrase_option()
    output: str = output_option()


@command(
    domain,
    example="""
penstock domain reconfigure bank.toml --dry-run
penstock domain reconfigure bank.toml --notice 5s --reason "new limits"
""",
)
def reconfigure(options: _Reconfigure) -> CommandAnswer:
    """Change the roles of a running domain to what FILE says: topics-lists, algorithms, priorities, policies.

    The roles that change are shown with the components that have them. Then the change is announced with an expected
    time, and the base time is shown when all components have applied it. Requests that were sent before are answered
    under the old configuration. Appointments and the role policy are not changed.
    """
    loaded = open_plan(options.file)
    _needs_shared(loaded)
    papers = [one for one in loaded.plan.components.values() if one.kind is ComponentKind.PAP]
    chosen = next((one for one in papers if options.who in (None, one.id)), None)
    if chosen is None and not options.dry_run:
        raise MalformedError("cli.usage", f"{loaded.path} has no such PAP", hint="give --as with the id of a PAP")
    key = None if options.dry_run or chosen is None else component_keys(loaded, (chosen.id,), options.passphrase_file)
    found = asyncio.run(_reconfigured(loaded, None if key is None else next(iter(key.values())), options))
    data = {
        "written": found.number is not None,
        "changes": [one.as_dict() for one in found.differences],
        "configuration": found.number,
        "expected": None if found.expected is None else _moment(found.expected),
        "base": None if found.base is None else _moment(found.base),
        "lost": [*found.lost],
    }
    return CommandAnswer(data, _show_reconfigured(found, dry_run=options.dry_run))


@dataclass(frozen=True, slots=True)
class _Reconfigured:
    differences: list[RoleDifference]
    number: int | None = None
    expected: float | None = None
    base: float | None = None
    #: components that did not apply it in time
    lost: tuple[str, ...] = ()


async def _reconfigured(loaded: LoadedPlan, key: SigningKey | None, options: _Reconfigure) -> _Reconfigured:
    strongest = max((one.strength for one in loaded.plan.components.values()), default=0) + 1
    settings = administration_settings(loaded, _RECONFIGURES, strongest)
    async with plan_fabric(loaded) as fabric:
        live = await read_live_domain(fabric, settings, SystemClock().now())
        differences = role_differences(live, role_configurations(loaded))
        if key is None or not differences:
            return _Reconfigured(differences)
        own = replace(settings, table={**settings.table, **live.roles})

        def note(error: PenstockError) -> None:
            note_component(_RECONFIGURES, error)

        async with AdministrationComponent(fabric, key, own, note=note) as pap:
            changes = {one.role: one.after for one in differences}
            number = await pap.reconfigure(changes, expected=pap.now() + options.notice, reason=options.reason)
            expected = pap.expected_time(number)
            base = await pap.base_time(number)
            lost = sorted(live.components.keys() - pap.registry.members.keys())
            return _Reconfigured(differences, number, base if expected is None else expected, base, tuple(lost))


def _show_reconfigured(found: _Reconfigured, *, dry_run: bool) -> Iterator[Shown]:
    for one in found.differences:
        yield f"{one.role}: {', '.join(one.components) or 'no component has it'}"
        yield from (f"  {change}" for change in one.changes)
    if not found.differences:
        yield "nothing changes"
    elif dry_run:
        affected = {id_ for one in found.differences for id_ in one.components}
        yield f"{counted(len(affected), 'component')} would be reconfigured"
    elif found.expected is not None and found.base is not None:
        yield f"configuration {found.number}: expected {_moment(found.expected)}, base time {_moment(found.base)}"
        if found.lost:
            yield f"lost their roles: {', '.join(found.lost)}"
