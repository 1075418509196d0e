"""`penstock doctor`: check a folder or a running broker, and say what to do."""

import asyncio
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Final

import click

from penstock.apps.cli.certs.certs import Expiry, certificate_files, find_certificates
from penstock.apps.cli.shared.broker_client import Call, ClientOptions, talk
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.credentials import find_types, usable_credentials
from penstock.apps.cli.shared.describe import Wording, counted, listed, table
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.revocations import (
    CHAINS,
    NOT_CHECKED,
    RenewalAdvice,
    RevocationCheck,
    ask_client,
    check_at_broker,
    revoked_in_chains,
)
from penstock.apps.cli.shared.session import CommandSession, speak
from penstock.apps.cli.shared.terminal import Shown
from penstock.apps.node.config import FabricKind, Stamps
from penstock.apps.node.load import LoadedNode, load_node
from penstock.broker.client.client import connect
from penstock.broker.wire.transports import PeerAddress
from penstock.codec.wire import Wire
from penstock.crypto import SigningKey
from penstock.errors import FailedError, PenstockError, RefusedError
from penstock.fabric.addresses import open_fabric
from penstock.model.principals import Principal
from penstock.store.files.client_files import load_key
from penstock.store.files.contexts import ContextFile, context_in_use
from penstock.store.files.files import check_secret
from penstock.store.files.name_book import DEFAULT_FILE, load_names
from penstock.trust.credentials import Credentials

#: files that were changed later than this from now on show that the clock is wrong
_SKEW: Final = timedelta(minutes=1)
_SECRETS: Final = (".key", ".kek")
#: keys that every node file has
_NODE_KEYS: Final = frozenset(("network", "key", "listen"))
_FRESH: Final = "fresh"
_LOST: Final = "lost"
_NOT_OPERATOR: Final = "broker.not-operator"


class HealthLevel(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


_MARKS: Final = {HealthLevel.OK: "✓", HealthLevel.WARNING: "!", HealthLevel.PROBLEM: "✗"}


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """The result of one check, and what to do about it."""

    level: HealthLevel
    check: str
    message: str
    hint: str = ""

    @classmethod
    def of(cls, check: str, error: PenstockError) -> "HealthFinding":
        """Return an error as a problem."""
        return cls(HealthLevel.PROBLEM, check, error.message, error.hint)

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {"level": str(self.level), "check": self.check, "message": self.message, "hint": self.hint}

    def lines(self) -> Iterator[str]:
        """Yield it as people see it."""
        yield f"{_MARKS[self.level]} {self.check}: {self.message}"
        if self.hint:
            yield f"    → {self.hint}"


@option_class
class _Doctor:
    path: str | None = argument(required=False, metavar="[FOLDER|FILE]", type=click.Path(path_type=str))
    client: ClientOptions
    fabric: str | None = option(
        "--fabric",
        metavar="URL",
        help="Check that this fabric can be reached: nats://HOST:PORT, kafka://HOST:PORT or dds://HOST/DOMAIN.",
    )
    output: str = output_option()


@command(
    example="""
penstock doctor demo
penstock doctor --fabric dds://127.0.0.1/7
penstock doctor --context demo-owner
penstock doctor demo -o json
"""
)
def doctor(session: CommandSession, options: _Doctor) -> CommandAnswer:
    """Check a FOLDER, a node FILE, or a running broker, and say what to do (default: the working folder).

    In a folder it checks the clock, who can read keys, certificates that expire, node files and the rights that they
    need, whether the brokers and their peers can be reached, and whether the files that your contexts name exist. With
    --broker or --context it asks a running broker about its links and the owners' policies; that is for its operators.
    If the folder has an operator's key, it asks the folder's broker too. With --fabric it checks that a fabric's
    servers, or the keeper of a DDS domain, answer. The exit status is 1 if there is a problem.
    """
    running = options.client.url is not None or options.client.context is not None
    call = options.client.call() if running else None
    findings: list[HealthFinding] = []
    if options.fabric is not None:
        findings.append(_check_fabric(options.fabric))
    if options.path is not None or (call is None and options.fabric is None):
        findings += check_folder(Path(options.path or "."), session.now, call)
    if call is not None:
        findings += _check_broker(call, session.now, alone=options.path is None)
    counts = {level: sum(one.level is level for one in findings) for level in HealthLevel}
    data = {
        "ok": not counts[HealthLevel.PROBLEM],
        "problems": counts[HealthLevel.PROBLEM],
        "warnings": counts[HealthLevel.WARNING],
        "findings": [one.as_dict() for one in findings],
    }
    error = None
    if counts[HealthLevel.PROBLEM]:
        error = RefusedError("doctor.problems", f"{counted(counts[HealthLevel.PROBLEM], 'problem')} found")
    return CommandAnswer(data, _shown(findings), error)


def _check_fabric(address: str) -> HealthFinding:
    async def ask() -> None:
        await (await open_fabric(address)).close()

    try:
        asyncio.run(ask())
    except PenstockError as error:
        return HealthFinding.of("fabric", error)
    return HealthFinding(HealthLevel.OK, "fabric", f"{address} answers")


def _shown(findings: Iterable[HealthFinding]) -> Iterator[Shown]:
    for one in findings:
        yield from one.lines()


# ----------------------------------------------------------------------------------------------------------------------
# A folder.


def check_folder(path: Path, now: datetime, call: Call | None = None) -> Iterator[HealthFinding]:
    """Yield what is found in a folder, or in the folder of a node file.

    `call` is a broker to ask about revocations, besides those of the folder. Raises `FailedError` (`file.missing`).
    """
    if not path.exists():
        raise FailedError("file.missing", f"there is no folder `{path}`", hint="check the path")
    folder = path if path.is_dir() else path.parent
    files = [one for one in sorted(folder.rglob("*")) if one.is_file()]
    try:
        bag, _ = usable_credentials(map(str, certificate_files((str(folder),))))
    except PenstockError:
        # The check of certificates reports it.
        bag = Credentials()
    nodes = [path] if path.is_file() else [one for one in files if _is_node_file(one)]
    keys = [one for one in files if one.suffix == ".key"]
    checked = [_check_node(str(node), keys, now, bag) for node in nodes]
    check = revoked_in_chains(one for one in files if one.suffix == CHAINS)
    for found in (*([] if call is None else [check_at_broker(call, bag)]), *(found for _, found in checked)):
        check |= found
    yield _check_clock(files, now)
    yield from check_clocks(check)
    yield from _check_keys([one for one in files if one.suffix in _SECRETS])
    yield from _check_certificates(folder, [*map(str, keys)], now, check)
    yield from _check_contexts()
    if not nodes:
        yield HealthFinding(
            HealthLevel.WARNING, "brokers", f"there is no node file in {folder}", "create one: `penstock init`"
        )
    for findings, _ in checked:
        yield from findings


def _check_clock(files: Iterable[Path], now: datetime) -> HealthFinding:
    changed: list[tuple[datetime, Path]] = []
    for one in files:
        # A broker that runs replaces files of its folder.
        with suppress(FileNotFoundError):
            changed.append((datetime.fromtimestamp(one.stat().st_mtime, UTC), one))
    last = max(changed, default=None)
    if last is not None and last[0] > now + _SKEW:
        when = f"{last[0]:%Y-%m-%d %H:%M:%S} UTC"
        return HealthFinding(
            HealthLevel.PROBLEM,
            "clock",
            f"it is {now:%Y-%m-%d %H:%M:%S} UTC here, but {last[1]} was changed at {when}",
            "set the clock, for example by NTP: certificates and time-stamps depend on it",
        )
    return HealthFinding(HealthLevel.OK, "clock", f"{now:%Y-%m-%d %H:%M:%S} UTC, and no file is from the future")


def check_clocks(check: RevocationCheck) -> Iterator[HealthFinding]:
    """Yield by how much the clock here differs from the broker's that was asked."""
    if check.ahead is None:
        return
    seconds = round(check.ahead.total_seconds(), 1)
    if not seconds:
        yield HealthFinding(HealthLevel.OK, "clock", f"as {check.broker} has it")
        return
    wrong = (
        f"the clock here is {abs(seconds):g} s {'ahead of' if seconds > 0 else 'behind'} the clock of {check.broker}"
    )
    level = HealthLevel.WARNING if abs(check.ahead) < _SKEW else HealthLevel.PROBLEM
    yield HealthFinding(level, "clock", wrong, "set both clocks, for example by NTP")


def _check_keys(files: list[Path]) -> Iterator[HealthFinding]:
    exposed = False
    for file in files:
        try:
            check_secret(file)
        except RefusedError as error:
            exposed = True
            yield HealthFinding.of("keys", error)
    if files and not exposed:
        yield HealthFinding(HealthLevel.OK, "keys", f"{counted(len(files), 'key file')}, for the owner alone")


_EXPIRY: Final = {
    Expiry.EXPIRED: (HealthLevel.PROBLEM, "run `{0.renew}`, or delete the file{1}"),
    Expiry.REVOKED: (HealthLevel.PROBLEM, "to give the right back, {0.give_back}; otherwise delete the file{1}"),
    Expiry.INVALID: (HealthLevel.PROBLEM, "run `penstock cert show {0.files[0]}`, and ask the issuer for another one"),
    Expiry.EXPIRING: (HealthLevel.WARNING, "run `{0.renew}`"),
    Expiry.NEVER: (HealthLevel.WARNING, "run `{0.renew}` to give it a lifetime"),
}


def _check_certificates(
    folder: Path, keys: Sequence[str], now: datetime, check: RevocationCheck
) -> Iterator[HealthFinding]:
    try:
        found = list(find_certificates((str(folder),), now, check=lambda _file: check))
        stored, spoken = ContextFile.load(), dict[str, str]()
        for names in sorted(folder.rglob(DEFAULT_FILE), reverse=True):
            spoken |= load_names(names).spoken()
    except PenstockError as error:
        yield HealthFinding.of("certificates", error)
        return
    for one in found:
        if one.expiry in _EXPIRY:
            level, hint = _EXPIRY[one.expiry]
            words = speak(one.state, spoken)
            advice = RenewalAdvice.of(one.judged.statement.issuer, one.file, near=keys)
            hint = hint.format(advice, _named(stored, one.file))
            yield HealthFinding(level, "certificates", f"{one.file}: {words}", hint)
    valid = [one.ends for one in found if one.expiry is Expiry.VALID and one.ends is not None]
    if valid:
        number = counted(len(valid), "certificate")
        until = f"{number} valid until {min(valid):%Y-%m-%d} or longer"
        words = "none of these is revoked" if check.answered else "no broker was asked whether they are revoked"
        yield HealthFinding(HealthLevel.OK, "certificates", f"{until}; {words}")


def _named(stored: ContextFile, file: str) -> str:
    """Return what else to do if a certificate is deleted: clients whose context names a missing file cannot connect."""
    path = Path(file).resolve()
    found = [name for name, one in stored.contexts.items() if path in map(Path.resolve, map(Path, one.credentials))]
    return "".join(f", and run `{_without(name, file)}`" for name in found)


def _without(context: str, *files: str) -> str:
    return " ".join(map(quote, ("penstock", "context", "remove-credential", context, *files)))


def _check_contexts() -> Iterator[HealthFinding]:
    """Yield the user's contexts that name files which do not exist; those that are not in use only matter later."""
    try:
        stored, current = ContextFile.load(), context_in_use()
    except PenstockError as error:
        yield HealthFinding.of("contexts", error)
        return
    for name, one in stored.contexts.items():
        gone = [file for file in one.credentials if not Path(file).exists()]
        others = [file for file in (one.key, one.names, one.type_file) if file and not Path(file).exists()]
        if gone or others:
            level = HealthLevel.PROBLEM if name == current else HealthLevel.WARNING
            verb = "do" if len(others + gone) > 1 else "does"
            missing = f"it names {', '.join((*others, *gone))}, which {verb} not exist"
            hint = _ADD.format(quote(name)) if others else f"run `{_without(name, *gone)}`"
            yield HealthFinding(level, f"context {name}", missing, hint)


_ADD: Final = "run `penstock context add {0} --overwrite …` with files that exist, or `penstock context remove {0}`"


def _is_node_file(file: Path) -> bool:
    try:
        return file.suffix == ".toml" and tomllib.loads(file.read_text(encoding="utf-8")).keys() >= _NODE_KEYS
    except (OSError, ValueError):
        return False


# ----------------------------------------------------------------------------------------------------------------------
# A node file, what it names, and whether its broker and peers answer.


def _check_node(
    file: str, keys: Iterable[Path], now: datetime, bag: Credentials
) -> tuple[list[HealthFinding], RevocationCheck]:
    """Return what is found about a node, and which of the certificates are revoked if its broker says so."""
    try:
        loaded = load_node(file, now)
        broker = NameBook.of({}).principal(loaded.key_file)
    except PenstockError as error:
        return [HealthFinding.of(file, error)], NOT_CHECKED
    findings = list(_check_rights(loaded, broker, now))
    if not findings:
        types = counted(len(loaded.types), "type")
        findings.append(
            HealthFinding(
                HealthLevel.OK, file, f"can be started: {types}, {counted(len(loaded.credentials), 'certificate')}"
            )
        )
    found, check = talk(lambda _stop: _check_addresses(loaded, keys, bag))
    return [*findings, *found], check


def _check_rights(loaded: LoadedNode, broker: Principal, now: datetime) -> Iterator[HealthFinding]:
    who, network = loaded.names.show(broker), f"{loaded.names.show(loaded.network.owner)}/{loaded.network.name}"
    for right in loaded.missing(broker, now):
        yield HealthFinding(
            HealthLevel.PROBLEM,
            loaded.path,
            f"{who} does not have the right `{right}` on {network}: others refuse it",
            f"let the network's owner run `penstock cert issue --network {network} --to {who} --right {right} …`",
        )
    for name in loaded.not_carried(broker, now):
        owner, written = loaded.names.show(name.owner), f"{loaded.names.show(name.owner)}/{name.name}"
        yield HealthFinding(
            HealthLevel.PROBLEM,
            loaded.path,
            f"{who} does not have the right `route` on {written}: it carries none of its events",
            f"let {owner} run `penstock cert issue --type {written} --to {who} --right route …`",
        )
    unstamped = [owner for owner, own in loaded.stamped(broker, now).items() if not own]
    if loaded.file.stamps is Stamps.OPTIONAL:
        yield HealthFinding(
            HealthLevel.WARNING,
            loaded.path,
            "time-stamps are optional: a broker that is cut off goes on for owners that sign none",
            'write `stamps = "required"` into `[trust]`, and grant the right `stamp` to a broker',
        )
    elif unstamped and not loaded.peers and loaded.file.fabric.kind is FabricKind.ROUTED:
        owners = ", ".join(map(loaded.names.show, unstamped))
        yield HealthFinding(
            HealthLevel.PROBLEM,
            loaded.path,
            f"nobody signs time-stamps for {owners}: nothing of theirs is delivered",
            f"run `penstock cert issue --type '{owners}/*' --to {who} --right stamp …` with the owner's key",
        )


async def _check_addresses(
    loaded: LoadedNode, keys: Iterable[Path], bag: Credentials
) -> tuple[list[HealthFinding], RevocationCheck]:
    found: list[HealthFinding] = []
    check, limits = NOT_CHECKED, loaded.file.limits.broker
    for peer in loaded.peers:
        if isinstance(peer, PeerAddress):
            problem = await peer.probe(loaded.network, limits)
            level = HealthLevel.OK if problem is None else HealthLevel.PROBLEM
            hint = "" if problem is None else "start that broker, or correct `address` in `[[peers]]`"
            message = "answers" if problem is None else problem.message
            found.append(HealthFinding(level, f"peer {peer}", message, hint))
    listen = loaded.file.listen
    problem = (
        await listen.probe(loaded.network, limits) if listen.port else FailedError("link.unreachable", "it has no port")
    )
    if problem is None:
        asked, check = await _ask_running(loaded, keys, bag)
        found += asked
    elif problem.code == "link.unreachable":
        found.append(HealthFinding(HealthLevel.OK, loaded.path, f"not running; `penstock up {loaded.path}` starts it"))
    else:
        words = f"something else listens at {listen}: {problem.message}"
        found.append(HealthFinding(HealthLevel.PROBLEM, loaded.path, words, "stop it, or change `listen`"))
    return found, check


async def _ask_running(
    loaded: LoadedNode, keys: Iterable[Path], bag: Credentials
) -> tuple[list[HealthFinding], RevocationCheck]:
    """Ask a broker that runs about its state, with an operator's key if there is one."""
    listen = loaded.file.listen
    check = f"broker {listen}"
    key = _operator_key(loaded, keys)
    if key is None:
        hint = "give an operator's connection to see more: --context, or --broker with --network and --key"
        return [HealthFinding(HealthLevel.OK, check, "runs", hint)], NOT_CHECKED
    broker = NameBook.of({}).principal(loaded.key_file)
    url = f"penstock://{listen.host}:{listen.port}"
    try:
        async with connect(
            url, key=key, network=loaded.network, credentials=loaded.credentials, broker=broker
        ) as client:
            found = list(check_status(await client.status(), NameBook({}, loaded.names)))
            return found, await ask_client(client, url, loaded.credentials, bag)
    except PenstockError as error:
        return [HealthFinding.of(check, error)], NOT_CHECKED


def _operator_key(loaded: LoadedNode, keys: Iterable[Path]) -> SigningKey | None:
    for file in keys:
        # A key that cannot be used here, or that needs a passphrase, is not used.
        with suppress(PenstockError):
            key = load_key(file)
            if key.principal in loaded.operators:
                return key
    return None


# ----------------------------------------------------------------------------------------------------------------------
# A broker that runs.


def _check_broker(call: Call, now: datetime, *, alone: bool) -> list[HealthFinding]:
    """Check a running broker; `alone`, without a folder, also the clock and the certificates of the connection."""
    found: list[HealthFinding] = []
    if alone:
        check, wording = check_at_broker(call, Credentials()), Wording(call.names, *find_types(now))
        found += check_clocks(check)
        found += [
            HealthFinding(
                HealthLevel.PROBLEM,
                "certificates",
                f"{wording.line(one.statement)} was {revoked.words(call.names.show)}",
                f"ask {call.names.show(one.statement.issuer)} to give the right back: "
                f"{RenewalAdvice.about(one, call.credential_files).give_back}",
            )
            for one in call.credentials
            if (revoked := check.of(one.id, one.statement)) is not None
        ]

    async def ask(_stop: asyncio.Event) -> list[HealthFinding]:
        try:
            async with call.client() as client:
                return list(check_status(await client.status(), call.names))
        except RefusedError as error:
            if error.code != _NOT_OPERATOR:
                return [HealthFinding.of(f"broker {call.url}", error)]
            text = (
                f"answers; what else it knows it tells operators, and {call.names.show(call.key.principal)} is not one"
            )
            return [HealthFinding(HealthLevel.OK, f"broker {call.url}", text)]
        except PenstockError as error:
            return [HealthFinding.of(f"broker {call.url}", error)]

    return [*found, *talk(ask)]


def check_status(status: Mapping[str, Wire], names: NameBook) -> Iterator[HealthFinding]:
    """Yield what a broker's state shows: links that are lost, and owners whose policy is not current."""
    broker = names.show_text(str(status.get("broker", "")))
    check = f"broker {broker}"
    for other, found in table(status.get("links")).items():
        link = table(found)
        if link.get("state") == _LOST:
            yield HealthFinding(
                HealthLevel.PROBLEM,
                check,
                f"its link to {names.show_text(other)} is lost ({link.get('code')!s})",
                "start that broker, or run `penstock net retire` if it does not come back",
            )
    for owner, found in table(status.get("policy")).items():
        yield from _check_policy(check, names.show_text(owner), table(found))
    brokers = counted(len(table(status.get("brokers"))), "broker")
    number = status.get("sessions")
    sessions = counted(number if isinstance(number, int) else 0, "session")
    yield HealthFinding(HealthLevel.OK, check, f"answers: {brokers} in the network, {sessions}")


def _check_policy(check: str, owner: str, state: Mapping[str, Wire]) -> Iterator[HealthFinding]:
    word, age = state.get("state"), state.get("stamp age")
    if word != _FRESH:
        since = f", the last time-stamp is {age:.0f} s old" if isinstance(age, int | float) else ""
        yield HealthFinding(
            HealthLevel.PROBLEM,
            check,
            f"the policy of {owner} is {word!s}{since}: nothing of {owner} is delivered",
            f"see that a broker with the right `stamp` of {owner} runs and is linked, or run `penstock net stamp`",
        )
    else:
        yield HealthFinding(HealthLevel.OK, check, f"the policy of {owner} is current")
    for name, problem in table(state.get("not installed")).items():
        hint = "correct the type's definition"
        yield HealthFinding(HealthLevel.PROBLEM, check, f"{owner}/{name} is not installed: {problem!s}", hint)
    for event in map(table, listed(state.get("events"))):
        if not isinstance(event.get("complete"), datetime):
            number = event.get("number")
            yield HealthFinding(
                HealthLevel.WARNING,
                check,
                f"policy event {number!s} of {owner} is not complete",
                "run `penstock net show` to see which brokers it waits for",
            )
