"""`penstock up`: run a broker from one file."""

import asyncio
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Final

import click

from penstock.apps.cli.shared.commands import (
    JSON,
    CommandAnswer,
    argument,
    command,
    option,
    option_class,
    output_option,
)
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.options import open_key, passphrase_option
from penstock.apps.cli.shared.session import CommandSession, Warned, aside, say, warn
from penstock.apps.cli.shared.terminal import fact_table, show
from penstock.apps.node.config import EXAMPLE, NODE_FILE, FabricKind, Stamps
from penstock.apps.node.load import LoadedNode, load_node
from penstock.apps.node.logs import Log
from penstock.apps.node.process import WITHOUT_STAMPS, Ready, World, run_node
from penstock.crypto import SigningKey
from penstock.errors import FailedError, MalformedError
from penstock.model.names import TypeName
from penstock.trust.capabilities import Right


@option_class
class _Up:
    file: str | None = argument(required=False, type=click.Path(path_type=str))
    check: bool = option(
        "--check", is_flag=True, help="Verify the file and everything that it names, and start nothing."
    )
    show_example: bool = option(
        "--example", is_flag=True, help="Print an example file with all settings and what they mean."
    )
    log_form: str | None = option(
        "--log", type=click.Choice(["human", "json"]), help="Log in this form (default: as --output)."
    )
    quiet: bool = option("--quiet", is_flag=True, help="Log problems only, not accepted requests.")
    passphrase_file: str | None = passphrase_option()
    output: str = output_option()


@command(
    example="""
penstock up --example > node.toml
penstock up --check node.toml
penstock up node.toml
penstock up node.toml -o json --quiet
"""
)
def up(session: CommandSession, options: _Up) -> CommandAnswer | None:
    """Run the broker that FILE describes, until it is stopped. For a folder, the file is FOLDER/broker.toml.

    The broker prints a line when it is ready, and logs to standard error. SIGTERM and SIGINT stop it: it informs
    clients and neighbours, and records its counters. SIGHUP reloads credentials, types, operators and facts without
    losing a connection. If one of them is invalid, the broker continues with the old ones.
    """
    if options.show_example:
        show(EXAMPLE.rstrip("\n").split("\n"))
        return None
    if options.file is None:
        hint = "`penstock init` creates a folder to give, and `penstock up --example` prints a file with all keys"
        raise MalformedError("cli.usage", "missing argument `FILE`", hint=hint)
    # `penstock init` writes a folder.
    file = str(Path(options.file) / NODE_FILE) if Path(options.file).is_dir() else options.file
    loaded = load_node(file, session.now)
    key = open_key(loaded.key_file, options.passphrase_file)
    managed = loaded.managed(key.principal, session.now)
    warnings = _warnings(loaded, key, managed, session.now)
    as_json = (options.log_form or options.output) == JSON
    if options.check or not as_json:
        warn(*warnings)
    if options.check:
        return _checked(loaded, key, managed, warnings)
    log = Log(
        aside,
        lambda: datetime.now(UTC),
        as_json=as_json,
        quiet=options.quiet,
        names=loaded.names,
        limits=loaded.file.limits,
    )
    # A JSON log contains nothing else.
    for warning in warnings if as_json else ():
        log.say("warning", "problem", code=warning.code, message=warning.message)
    world = World(clock=lambda: datetime.now(UTC), timer=time.perf_counter_ns, random=secrets.token_bytes)
    try:
        run_node(loaded, key, log, world, lambda ready: _show_ready(loaded, ready, as_json=options.output == JSON))
    except FailedError as error:
        at = loaded.file.listen
        me = replace(at, principal=key.principal)
        if error.code == "link.address" and asyncio.run(me.probe(loaded.network, loaded.file.limits.broker)) is None:
            error.message = f"{loaded.names.show(key.principal)} runs already, at {at}"
            error.hint = f"use it, or stop it first; `penstock doctor {quote(options.file)}` says how it is"
        raise
    return None


_MISSING: Final = {Right.CONNECT: "node.no-connect", Right.BROKER: "node.no-broker"}


def _warnings(loaded: LoadedNode, key: SigningKey, managed: Sequence[TypeName], now: datetime) -> tuple[Warned, ...]:
    who = loaded.names.show(key.principal)
    found: list[Warned] = []
    for right in loaded.missing(key.principal, now):
        text = f"{who} does not have the right `{right}` on its network: it delivers nothing, and others refuse it"
        found.append(Warned(_MISSING[right], text))
    unstamped = [loaded.names.show(owner) for owner, own in loaded.stamped(key.principal, now).items() if not own]
    if loaded.file.stamps is Stamps.OPTIONAL:
        found.append(Warned("node.stamps-optional", WITHOUT_STAMPS))
    elif unstamped and not loaded.peers and loaded.file.fabric.kind is FabricKind.ROUTED:
        text = f"{who} may not stamp for {', '.join(unstamped)}: nothing of theirs is delivered unless others do"
        found.append(Warned("node.no-stamps", text))
    if loaded.file.keys is not None and not managed:
        text = f"{who} has no right `keys` to any sealed type that its file names, and manages nothing"
        found.append(Warned("node.no-keys", text))
    return tuple(found)


def _checked(
    loaded: LoadedNode, key: SigningKey, managed: Sequence[TypeName], warnings: tuple[Warned, ...]
) -> CommandAnswer:
    data = {
        "ok": True,
        "principal": str(key.principal),
        "network": str(loaded.network),
        "listen": str(loaded.file.listen),
        "http": None if loaded.file.http is None else str(loaded.file.http),
        "peers": [str(peer) for peer in loaded.peers],
        "types": len(loaded.types),
        "certificates": len(loaded.credentials),
        "manages_keys": sorted(map(str, managed)),
        "operators": sorted(map(str, loaded.operators)),
        "warnings": [warning.as_dict() for warning in warnings],
    }
    facts = [
        ("broker", loaded.names.show(key.principal)),
        ("network", f"{loaded.names.show(loaded.network.owner)}/{loaded.network.name}"),
        ("listens at", str(loaded.file.listen)),
        ("peers", ", ".join(map(str, loaded.peers)) or "none"),
        ("types", str(len(loaded.types))),
        ("certificates", str(len(loaded.credentials))),
        ("manages keys", "no" if loaded.file.keys is None else f"of {counted(len(managed), 'type')}"),
        ("operators", ", ".join(sorted(map(loaded.names.show, loaded.operators))) or "the broker's own key"),
    ]
    return CommandAnswer(data, [f"✓ {loaded.path} can be started", fact_table(facts, indent=2)])


def _show_ready(loaded: LoadedNode, ready: Ready, *, as_json: bool) -> None:
    if as_json:
        # One line, so that a script can read it while the broker runs.
        http = None if ready.http is None else str(ready.http)
        line = {"principal": str(ready.principal), "url": f"penstock://{ready.listen}", "http": http}
        click.echo(json.dumps(line))
        return
    at = f"penstock://{ready.listen}" + ("" if ready.http is None else f", http://{ready.http}/metrics")
    say(f"{loaded.names.show(ready.principal)} is ready at {at}")
