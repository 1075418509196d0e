"""`penstock acs serve`: run the access control service of a domain."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click

from penstock.apps.acs.config import EXAMPLE, LoadedDomain, load_domain
from penstock.apps.acs.domain_facts import DomainFacts
from penstock.apps.acs.role_notices import NoticeSender
from penstock.apps.acs.service import (
    DomainService,
    DomainServiceSettings,
    RunningDomainService,
    ServicePlace,
)
from penstock.apps.acs.validity import ValidityPublisher
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    option,
    option_class,
    output_option,
    wants_data,
)
from penstock.apps.cli.shared.files import read_sexp, within
from penstock.apps.cli.shared.options import open_key, passphrase_option
from penstock.apps.cli.shared.session import CommandSession, aside
from penstock.apps.cli.shared.terminal import fact_table, show
from penstock.apps.http.service import tls_context
from penstock.authority.domain.distribution import CAPABILITY_PREFIX, CapabilityPush
from penstock.authority.domain.domain_ledger import DomainLedger, ledger_name
from penstock.authority.domain.signers import ProgramSigner
from penstock.authority.role_book import RoleBook
from penstock.broker.client.client import Client, connect
from penstock.crypto import PublicKey, Signer, read_key
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.fabric import SystemClock
from penstock.fabric.tasks import keep_running
from penstock.store.ledgers.ledgers import Store
from penstock.store.ledgers.urls import open_store
from penstock.trust.statements import OnlineKind, OnlineTerms

#: how long capabilities from roles count without a heartbeat
_INTERVAL: Final = timedelta(seconds=30)


@option_class
class _Serve:
    file: str | None = argument(required=False, type=click.Path(path_type=str))
    check: bool = option("--check", is_flag=True, help="Verify the file and what it names, and start nothing.")
    show_example: bool = option("--example", is_flag=True, help="Print an example file with all settings.")
    passphrase_file: str | None = passphrase_option()
    output: str = output_option()


@command(
    example="""
penstock acs serve --example > domain.toml
penstock acs serve --check domain.toml
penstock acs serve domain.toml
"""
)
def serve(session: CommandSession, options: _Serve) -> CommandAnswer | None:
    """Run the access control service of the domain that FILE describes, until it is stopped.

    The first start begins the domain in its store. The service issues the certificates of the administrators that FILE
    names, renews short-lived certificates before they end, answers the other commands of `penstock acs`, and prints a
    line when it is ready. Several services can share one PostgreSQL database.
    """
    if options.show_example:
        show(EXAMPLE.rstrip("\n").split("\n"))
        return None
    if options.file is None:
        raise MalformedError("cli.usage", "missing argument `FILE`", hint="`penstock acs serve --example` prints one")
    loaded = load_domain(options.file, session.now)
    signer = _signer(loaded, options.passphrase_file)
    if options.check:
        # A token or a program may not be there.
        signer.sign(b"penstock acs serve --check")
        return _checked(loaded, signer)
    with open_store(loaded.store, create=True) as store:
        _run(loaded, signer, store)
    return None


def _signer(loaded: LoadedDomain, passphrase_file: str | None) -> Signer:
    if not loaded.file.signer:
        return open_key(loaded.key_file, passphrase_file)
    value = read_sexp(loaded.key_file)
    with within(loaded.key_file):
        public = read_key(value)
    if not isinstance(public, PublicKey):
        raise MalformedError(
            "acs.file-value",
            "with `signer`, `key` must be the public key",
            hint="`penstock key show FILE --public FILE` writes it",
        )
    return ProgramSigner(loaded.file.signer, public)


def _checked(loaded: LoadedDomain, signer: Signer) -> CommandAnswer:
    file = loaded.file
    data = {
        "ok": True,
        "name": file.name,
        "domain": str(signer.principal),
        "listen": str(file.listen),
        "administrators": [str(one) for one in loaded.administrators],
        "types": [str(name) for name in loaded.types],
        "certificates": len(loaded.credentials),
    }
    facts = [
        ("domain", f"{file.name}, {signer.principal}"),
        ("listens at", str(file.listen)),
        ("administrators", ", ".join(map(loaded.names.show, loaded.administrators)) or "the domain's own key"),
        ("types", str(len(loaded.types))),
        ("certificates", str(len(loaded.credentials))),
    ]
    return CommandAnswer(data, [f"✓ {loaded.path} can be started", fact_table(facts, indent=2)])


def _run(loaded: LoadedDomain, signer: Signer, store: Store) -> None:
    file, folder, as_json = loaded.file, Path(loaded.path).parent, wants_data()
    tls = tls_context(folder / file.tls_cert, folder / file.tls_key) if file.tls_cert else None
    domain = DomainLedger.create(store.ledger(ledger_name(file.name)), file.name, signer, datetime.now(UTC))
    host = f"[{file.listen.host}]" if ":" in file.listen.host else file.listen.host
    base = f"{'http' if tls is None else 'https'}://{host}"
    book = _role_book(loaded, store, signer)
    # With a broker, brokers hear immediately that a role has ended.
    active = OnlineTerms(OnlineKind.ACTIVE, signer.principal, pause=_INTERVAL).to_test()
    settings = DomainServiceSettings(
        types=loaded.types,
        url=base,
        roles=book,
        role_online=() if loaded.network is None else (active,),
    )

    async def run() -> None:
        service = DomainService(domain, settings)
        facts = DomainFacts(loaded, book, service, _note) if book is not None and file.facts else None
        service.begin(loaded.administrators, loaded.credentials)

        def ready(port: int) -> None:
            url = f"{base}:{port}"
            service.settings = replace(settings, url=url)
            line = {"url": url, "domain": str(signer.principal), "name": file.name}
            # One line, because the program that started it waits for it.
            show([json.dumps(line) if as_json else f"✓ {file.name} is ready at {url}, domain {signer.principal}"])

        async with AsyncExitStack() as stack:
            push = await _push(loaded, signer, stack)
            if loaded.network is not None:
                publisher = ValidityPublisher(service, lambda: _broker(loaded, signer), _problem)
                publishing = keep_running("sending validity statements", publisher.run)
                stack.callback(publishing.cancel)
            if book is not None and loaded.notify:
                sender = NoticeSender(service, book, loaded.notify, _problem)
                stack.callback(keep_running("notifying other domains", sender.run).cancel)
            if facts is not None:
                await stack.enter_async_context(facts)
            place = ServicePlace(file.listen.host, file.listen.port, tls)
            await RunningDomainService(service, place, _note, push).run(ready)

    asyncio.run(run())


def _broker(loaded: LoadedDomain, key: Signer) -> Client:
    return connect(loaded.file.broker, key=key, network=loaded.network, credentials=loaded.credentials, patience=10.0)


def _role_book(loaded: LoadedDomain, store: Store, signer: Signer) -> RoleBook | None:
    """Return the domain's roles, if it has any. Raises as `RoleBook`, and `RefusedError` (`acs.role-book`)."""
    if not loaded.file.roles:
        return None
    book = RoleBook(store.ledger(loaded.file.roles), signer)
    if book.founding.domain != signer.principal:
        raise RefusedError(
            "acs.role-book",
            f"the roles in `{loaded.file.roles}` are those of {book.founding.domain.short}, not of this domain",
            hint="check `roles` in the domain file",
        )
    return book


async def _push(loaded: LoadedDomain, signer: Signer, stack: AsyncExitStack) -> CapabilityPush | None:
    if loaded.nats is None:
        return None
    from penstock.fabric.nats import NatsFabric  # noqa: PLC0415  # nats-py is an extra

    fabric = await stack.enter_async_context(await NatsFabric.connect(loaded.nats, prefix=CAPABILITY_PREFIX))
    return CapabilityPush(fabric, SystemClock(), signer, _problem)


def _problem(error: PenstockError) -> None:
    _note(str(error))


def _note(line: str) -> None:
    aside(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}")
