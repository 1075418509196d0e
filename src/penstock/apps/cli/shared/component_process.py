"""Processes that host components of a domain plan: they print who has joined, and leave on a signal."""

import asyncio
import json
import secrets
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from penstock.apps.cli.shared.commands import wants_data
from penstock.apps.cli.shared.options import open_key
from penstock.apps.cli.shared.session import aside, say
from penstock.apps.component_host import ComponentHost, is_shared, plan_fabric
from penstock.authority.components.exchange.topics import NAME_LENGTH
from penstock.authority.components.plans.domain_plan import LoadedPlan, load_domain_plan
from penstock.authority.components.points.enforcement import EnforcementComponent
from penstock.authority.decisions.modes import AskedDecision
from penstock.authority.decisions.questions import AccessQuestion
from penstock.crypto import SigningKey
from penstock.errors import FailedError, MalformedError, PenstockError, did_you_mean, printable
from penstock.fabric.tasks import waited_for

#: turns of the event loop after which components in one process know of each other
_TURNS: Final = 200
_PROGRAM: Final = "from penstock.apps.cli.main import main; main()"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def open_plan(file: str) -> LoadedPlan:
    """Load a domain plan. Raises as `load_domain_plan`, with a hint which command makes the files that are missing."""
    try:
        return load_domain_plan(file)
    except FailedError as error:
        if error.code != "file.missing" or not Path(file).exists():
            raise
        hint = f"check the path; `penstock domain new-keys {file}` makes keys and the file of names"
        raise FailedError(error.code, error.message, hint=hint) from None


def component_keys(loaded: LoadedPlan, ids: Iterable[str], passphrase_file: str | None) -> dict[str, SigningKey]:
    """Open the keys of components; of all, if no ids are given.

    Raises as `open_key`, and `MalformedError` (`cli.usage`) for an unknown id.
    """
    known = loaded.plan.components
    wanted = list(ids) or list(known)
    for id_ in wanted:
        if id_ not in known:
            message = f"{loaded.path} has no component `{id_[:80]}`"
            raise MalformedError("cli.usage", message, hint=did_you_mean(id_, known, f"it has: {', '.join(known)}"))
    return {id_: open_key(str(loaded.folder / known[id_].key), passphrase_file) for id_ in wanted}


def show_component_event(event: str, text: str, **fields: object) -> None:
    """Print a line about components: for people, or as JSON."""
    if wants_data():
        click.echo(json.dumps({"event": event, **fields}))
    else:
        say(text)


def note_component(id_: str, error: PenstockError) -> None:
    """Print what a component refuses or reports, to standard error."""
    if wants_data():
        aside(json.dumps({"component": id_, "error": error.as_dict()}))
    else:
        aside(printable(f"{id_}: {error}"))


async def host_components(loaded: LoadedPlan, ids: Iterable[str], passphrase_file: str | None) -> None:
    """Run components until a signal comes. Raises the first refusal if all of them were refused."""
    keys = component_keys(loaded, ids, passphrase_file)
    domain = loaded.plan.name

    def joined(id_: str) -> None:
        role = loaded.plan.components[id_].role or "PAP"
        text = f"{id_} has joined {domain} as {role}"
        show_component_event("joined", text, component=id_, domain=domain, role=role)

    async def run() -> None:
        async with (
            plan_fabric(loaded) as fabric,
            ComponentHost(loaded, fabric, keys, note_component, joined=joined) as host,
        ):
            if len(host.refused) == len(keys):
                raise next(iter(host.refused.values()))
            count = len(keys) - len(host.refused)
            text = f"{domain}: {count} of {len(keys)} components have joined"
            show_component_event("ready", text, domain=domain, joined=count, components=len(keys))
            await asyncio.Event().wait()

    await until_signal(run())


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run until it ends, or until a signal ends it: then it can clean up."""
    loop = asyncio.get_running_loop()
    task = waited_for(work)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not stopped:
            raise
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def host_in_processes(loaded: LoadedPlan, passphrase_file: str | None, started: Callable[[str], None]) -> None:
    """Run each component of a plan in a process of its own until a signal comes, and then end them."""
    more = ["-o", "json"] if wants_data() else []
    if passphrase_file is not None:
        more += ["--passphrase-file", passphrase_file]
    children: list[asyncio.subprocess.Process] = []

    async def run() -> None:
        for id_ in loaded.plan.components:
            command = (sys.executable, "-c", _PROGRAM, "component", "up", *more, loaded.path, id_)
            children.append(await asyncio.create_subprocess_exec(*command))
            started(id_)
        await asyncio.gather(*(child.wait() for child in children))

    try:
        await until_signal(run())
    finally:
        for child in children:
            with suppress(ProcessLookupError):
                child.terminate()
        await asyncio.gather(*(child.wait() for child in children))


def with_own_id(loaded: LoadedPlan, id_: str) -> tuple[LoadedPlan, str]:
    """Return a plan with one component alone, under another id: the role is the key's, so it has the same rights."""
    suffix = f"-ask-{secrets.token_hex(3)}"
    own = f"{id_[: NAME_LENGTH - len(suffix)]}{suffix}"
    one = replace(loaded.plan.components[id_], id=own, certificate="")
    return replace(loaded, plan=replace(loaded.plan, components={own: one})), own


async def ask_through(  # noqa: PLR0913  # a PEP, a question, and how to ask it
    loaded: LoadedPlan,
    id_: str,
    question: AccessQuestion,
    timeout: float,
    passphrase_file: str | None,
    *,
    take_over: bool = False,
) -> AskedDecision:
    """Ask through a PEP of a plan, with an id of its own unless it takes over the PEP's.

    Raises as `EnforcementComponent.decide` and `join`, and `MalformedError`.
    """
    keys: Mapping[str, SigningKey] = component_keys(loaded, (id_,) if is_shared(loaded) else (), passphrase_file)
    if id_ not in keys:
        component_keys(loaded, (id_,), passphrase_file)
    if is_shared(loaded) and not take_over:
        loaded, own = with_own_id(loaded, id_)
        keys, id_ = {own: keys[id_]}, own
    async with plan_fabric(loaded) as fabric:
        host = ComponentHost(loaded, fabric, keys, note_component)
        point = host.components[id_]
        if not isinstance(point, EnforcementComponent):
            peps = [one for one, other in host.components.items() if isinstance(other, EnforcementComponent)]
            hint = f"ask through a PEP: {', '.join(peps)}" if peps else "ask through a PEP"
            raise MalformedError("cli.usage", f"`{id_}` is not a PEP", hint=hint)
        try:
            async with asyncio.timeout(timeout):
                await host.join()
        except TimeoutError:
            message = f"`{id_}` has not joined `{loaded.plan.name}` within {timeout:g} s"
            raise FailedError("component.join-waits", message, hint="start a PAP of the domain") from None
        try:
            if id_ in host.refused:
                raise host.refused[id_]
            for _ in range(0 if is_shared(loaded) else _TURNS):
                # Here, what components say that they require arrives without waiting: let it, before it is needed.
                await asyncio.sleep(0)
            return await point.decide(question)
        finally:
            await host.leave()
