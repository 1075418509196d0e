"""`penstock init`: a folder with a network that works."""

import os
import re
import secrets
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.cli.shared.terminal import Shown
from penstock.apps.node.starter import (
    MEMBERS,
    READER,
    SAMPLE,
    SENSOR,
    TYPE_FILE,
    StarterFile,
    StarterNetwork,
    certificate_path,
    key_path,
)
from penstock.broker.wire.transports import PeerAddress
from penstock.errors import FailedError, MalformedError, RefusedError
from penstock.store.files.contexts import ConnectionContext, ContextFile, changing_contexts
from penstock.store.files.files import PUBLIC, SECRET, create_file, reason
from penstock.store.files.strict_tables import check_petname

_NETWORK: Final = "demo"
_ORGANISATION: Final = "acme"
_OWNER: Final = "owner"
_LOOPBACK: Final = "127.0.0.1"
_PORTS: Final = range(7600, 7700)
_BARE: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?", re.ASCII)


@option_class
class _Init:
    folder: str | None = argument(required=False, type=click.Path(path_type=str))
    organisation: str | None = option(
        "--organisation",
        metavar="NAME",
        help=f"Name the organisation (default: {_ORGANISATION}).",
    )
    network: str | None = option(
        "--network", metavar="NAME", help=f"Name the network (default: the folder's name, or {_NETWORK})."
    )
    listen: str | None = option(
        "--listen",
        metavar="HOST:PORT",
        help="Let the broker listen here (default: a free port of 127.0.0.1).",
    )
    contexts: bool | None = option(
        "--contexts/--no-contexts",
        default=None,
        help="Add a context for each principal, and use the reader's (default: --contexts, or ask).",
    )
    yes: bool = option("--yes", is_flag=True, help="Ask nothing, and use the defaults.")
    output: str = output_option()


@command(example="penstock init demo\npenstock init demo --yes --organisation acme --listen 127.0.0.1:7700")
def init(session: CommandSession, options: _Init) -> CommandAnswer:
    """Create FOLDER with a network that works: keys, an event type, rights, a broker's file, and a README.

    The organisation owns the network. A sensor may publish readings, and a reader may see some of their attributes. All
    rights expire after a year. On a terminal, the command asks for what is not given. FOLDER must not exist, or be
    empty (default: the network's name).
    """
    asking = sys.stdin.isatty() and not options.yes
    folder_name = "" if options.folder is None else Path(options.folder).absolute().name
    organisation = options.organisation or _asked("Organisation", _ORGANISATION, asking=asking)
    network = options.network or _asked(
        "Network", folder_name if _BARE.fullmatch(folder_name) else _NETWORK, asking=asking
    )
    _check_names(organisation, network)
    folder = Path(options.folder or network)
    _check_folder(folder)
    listen = _free_address() if options.listen is None else _address(options.listen)
    made = StarterNetwork.create(organisation, network, listen, session.now, session.random)
    contexts = _wants_contexts(options.contexts, network, asking=asking)
    steps = _steps(made, folder, contexts=contexts)
    inside = _steps(made, None, contexts=contexts)
    width = max(len(step) for step, _ in inside)
    commands = "\n".join(f"$ {step:<{width}}  # {why}" for step, why in inside)
    with _whole_folder(folder, made.files(commands)):
        if contexts:
            with changing_contexts() as stored:
                _with_contexts(stored, made, folder).save()
    data = {
        "folder": str(folder),
        "organisation": organisation,
        "network": str(made.network),
        "broker": made.url,
        "expires": made.ends.isoformat().replace("+00:00", "Z"),
        "contexts": list(_contexts(made, folder)) if contexts else [],
        "next": [step for step, _ in steps],
    }
    return CommandAnswer(data, _shown(made, folder, steps, contexts=contexts))


def _shown(made: StarterNetwork, folder: Path, steps: list[tuple[str, str]], *, contexts: bool) -> Iterator[Shown]:
    yield f"✓ created {folder}: network {made.organisation}/{made.network.name}, rights until {made.ends:%Y-%m-%d}"
    if contexts:
        yield f"✓ commands without --context now use the context {_context_name(made, READER)}"
    yield ""
    yield "Next:"
    width = max(len(step) for step, _ in steps)
    for step, why in steps:
        yield f"  {step:<{width}}  # {why}"


def _asked(question: str, default: str, *, asking: bool) -> str:
    return str(click.prompt(question, default=default, err=True)) if asking else default


def _wants_contexts(chosen: bool | None, network: str, *, asking: bool) -> bool:
    if chosen is not None or not asking:
        return chosen is not False
    return click.confirm(f"Add contexts for {network}, and use the reader's?", default=True, err=True)


# ----------------------------------------------------------------------------------------------------------------------
# Names and addresses.


def _check_names(organisation: str, network: str) -> None:
    check_petname(organisation)
    if organisation in MEMBERS or not _BARE.fullmatch(organisation):
        raise MalformedError(
            "cli.usage",
            f"`{organisation[:80]}` cannot be the organisation's name here",
            hint=f"use ASCII letters, digits, `-` and `_`, but not {', '.join(MEMBERS)}",
        )
    if not _BARE.fullmatch(network):
        raise MalformedError(
            "cli.usage",
            f"`{network[:80]}` cannot be the network's name here",
            hint="use ASCII letters, digits, `-` and `_`",
        )


def _address(written: str) -> PeerAddress:
    host, colon, port = written.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise MalformedError("cli.usage", f"`{written[:80]}` is not HOST:PORT", hint="such as 127.0.0.1:7600")
    return PeerAddress(host.strip("[]"), int(port))


def _free_address() -> PeerAddress:
    for port in _PORTS:
        with socket.socket() as probe:
            try:
                probe.bind((_LOOPBACK, port))
            except OSError:
                continue
            return PeerAddress(_LOOPBACK, port)
    raise FailedError(
        "link.address", f"no port of {_LOOPBACK} from {_PORTS[0]} to {_PORTS[-1]} is free", hint="choose one: --listen"
    )


# ----------------------------------------------------------------------------------------------------------------------
# The folder: written beside its place, and moved there as a whole.


def _check_folder(folder: Path) -> None:
    """Raise `RefusedError` (`file.exists`) or `FailedError` (`file.unwritable`) if the folder cannot be created."""
    if os.path.lexists(folder):
        if not folder.is_dir() or any(folder.iterdir()):
            raise RefusedError("file.exists", f"`{folder}` is not empty", hint="choose a new folder")
        if folder.samefile(Path.cwd()):
            raise RefusedError("file.exists", f"`{folder}` is the working folder", hint="choose a new folder below it")
    if not folder.absolute().parent.is_dir():
        raise FailedError(
            "file.unwritable", f"`{folder}` cannot be created: there is no folder `{folder.absolute().parent}`"
        )


@contextmanager
def _whole_folder(folder: Path, files: dict[str, StarterFile]) -> Iterator[None]:
    """Create a folder with files. It does not exist if that, or the caller's part, fails.

    Raises `FailedError` (`file.unwritable`) and what the caller raises.
    """
    place = folder.absolute()
    beside = made = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    try:
        beside.mkdir(mode=0o700)
        for name, file in files.items():
            path = beside / name
            path.parent.mkdir(mode=0o700, exist_ok=True)
            create_file(path, file.data, mode=SECRET if file.secret else PUBLIC)
        # An empty folder is replaced; one that somebody has filled meanwhile is not.
        beside.rename(place)
        made = place
        yield
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        raise FailedError("file.unwritable", f"`{folder}` cannot be created: {reason(error)}") from error
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


# ----------------------------------------------------------------------------------------------------------------------
# Contexts, and the commands to run next.


def _contexts(made: StarterNetwork, folder: Path) -> dict[str, ConnectionContext]:
    place = folder.absolute()

    def of(who: str) -> ConnectionContext:
        return ConnectionContext(
            broker=made.url,
            network=str(made.network),
            key=str(place / key_path(who)),
            credentials=tuple(str(place / certificate_path(name)) for name in made.certificates_of(who)),
            names=str(place / "names.toml"),
            type_file=str(place / TYPE_FILE),
        )

    roles = {_OWNER: made.organisation, SENSOR: SENSOR, READER: READER}
    return {_context_name(made, role): of(who) for role, who in roles.items()}


def _context_name(made: StarterNetwork, role: str) -> str:
    return f"{made.network.name}-{role}"


def _with_contexts(stored: ContextFile, made: StarterNetwork, folder: Path) -> ContextFile:
    """Return the contexts with those of the network. Raises `RefusedError` (`context.exists`).

    Contexts of an earlier network in the same folder are replaced.
    """
    new = _contexts(made, folder)
    for name, one in new.items():
        if name in stored.contexts and stored.contexts[name].key != one.key:
            raise RefusedError(
                "context.exists",
                f"there is a context `{name}` already",
                hint="choose another --network, remove the context, or say --no-contexts",
            )
    return replace(stored, current=_context_name(made, READER), contexts={**stored.contexts, **new})


def _steps(made: StarterNetwork, folder: Path | None, *, contexts: bool) -> list[tuple[str, str]]:
    """Return the commands to run next, and what they do; without a folder, from within it."""
    at = "" if folder is None else f"{shlex.quote(str(folder))}/"
    who = {role: f" --context {_context_name(made, role)}" if contexts else "" for role in (READER, SENSOR, _OWNER)}
    subscribe, publish = f"penstock sub{who[READER]}", f"penstock pub{who[SENSOR]}"
    if not contexts:
        load = f"cd {at or '.'} && set -a && . ./.env && set +a"
        subscribe = f"{subscribe} --type-file {TYPE_FILE}"
        publish = f"{publish} --key {key_path(SENSOR)} --type-file {TYPE_FILE}"
        at = ""
        owner = f"--key {key_path(made.organisation)} --wait"
        start = [(load, "in each of three terminals"), ("penstock up .", "start the broker, and leave it running")]
    else:
        owner = f"{who[_OWNER].strip()} --wait"
        start = [(f"penstock up {at.rstrip('/') or '.'}", "start the broker, and leave it running")]
    right = f"{at}{certificate_path(f'{READER}-subscribe')}"
    return [
        *start,
        (subscribe, "in a second terminal: wait for readings"),
        (f"{publish} {SAMPLE}", "in a third: publish one"),
        (f"penstock net revoke {right} {owner}", "take the reader's right away"),
        (f"penstock cert renew {right} --key {at}{key_path(made.organisation)} --grant-again", "give it back:"),
        (f"penstock net publish {right} {owner}", "and let the broker know"),
    ]
