"""The London congestion charge: one network, four organisations, and who sees what of every passing car.

The running example of Pesonen's dissertation (sections 3.7, 5.2.2 and 6.1.1). PITO, the Police Information Technology
Organisation, coordinates the network and owns the event type `Numberplate`. Cameras of the Congestion Charge Service
publish sightings. Its billing office may see plates but not places, its statistics office places but not plates, and a
detective of the Metropolitan Police one plate only, while she has a court order, is on the case, and is a detective.
Each organisation has a broker of its own, and all meet at that of Thames Valley Police, which has the right to carry
the events and no other.

Brokers, cameras, readers and access control services are processes of their own; brokers and clients talk over TLS. The
same sightings then go through Spark.
Run it with `make demo`, or `python examples/london.py [--events N] [--seed N] [--out FOLDER]`.
"""

import argparse
import asyncio
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import london_pipeline
import london_reports
from london_cast import (
    BILLING,
    CAMERAS,
    CCS_BROKER,
    DOMAINS,
    MET,
    MET_BROKER,
    NAMES,
    NETWORK,
    NOW,
    PITO,
    PLACES,
    PLATE_QUESTION,
    SMITH,
    STATISTICS,
    SUSPECT,
    TRAFFIC,
    Issued,
    define_types,
    issue_credentials,
    sightings,
    subscribers,
)
from london_network import BROKERS, Company, Reader, eventually, slug, write_files, write_sightings
from london_refusals import Refusals
from london_roles import Offices, Roles, write_roles
from london_wire import Tap, carried, withdraw
from penstock.guard import CapabilityAuthority, EventRequest, decide
from penstock.model import Event, EventType, Principal, Scalar, TypeName
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.sealed.log import KeyFiles
from penstock.trust import Right, TypeCache, UnverifiedType, VerifiedType
from penstock.trust.policy_state import PolicyAuthor

Versions = Mapping[str, VerifiedType]
"""The two versions of the type, by their names."""


@dataclass(frozen=True)
class Scene:
    """What all parts of the story need."""

    console: Console
    versions: Versions
    library: Mapping[TypeName, UnverifiedType]
    issued: Issued
    roles: Roles
    policy: PipelinePolicy
    out: Path
    #: what the last lines repeat
    summary: list[str] = field(default_factory=list)

    def chapter(self, title: str) -> None:
        """Begin a part."""
        self.console.print(f"\n[bold]{title}[/]", highlight=False)

    def say(self, text: str, in_short: str = "") -> None:
        """Print a line, and keep another for the summary."""
        self.console.print(f"  {text}", highlight=False, markup=False)
        self.summary.extend([in_short] if in_short else [])

    def spoken(self, place: str) -> str:
        """Return the version that a camera speaks: half of them still use the first."""
        return "0" if PLACES.index(place) % 2 else "7f3a"


@dataclass(frozen=True)
class SealedLog:
    """What a broker kept of what lay between brokers, and who has which keys of it."""

    blocks: Sequence[bytes]
    #: how many sightings are in there that came after the Met had lost its right
    later: int
    keys: Mapping[Principal, KeyFiles]

    def rings(self, count: int) -> dict[str, tuple[KeyFiles, int]]:
        """Return the keys of each, and how many sightings they have to open, of so many before and those later."""
        return {
            NAMES.show(who): (files, count + (0 if who == MET.principal else self.later))
            for who, files in self.keys.items()
        }


def main(count: int, seed: int, out: Path) -> None:
    """Run the example."""
    started = time.perf_counter()
    console = Console()
    console.rule("[bold]London congestion charge[/]")
    scene = prepare(console, out)
    scene.chapter("Who may do what, and through which chain")
    introduce(scene)

    sent, live, log = asyncio.run(run_network(scene, count, seed))

    scene.chapter("The same sightings in bulk, on Spark")
    with console.status("  starting Spark"):
        spark = london_pipeline.session()
    with console.status("  admitting and delivering"):
        transit, delivered = london_pipeline.batch(spark, list(scene.versions.values()), sent, scene.policy)
        london_pipeline.show(console, delivered, live)
    scene.chapter("What that broker kept is a log, which each opens as far as its keys go")
    types = [verified.event_type for verified in scene.versions.values()]
    london_pipeline.unsealed(console, spark, types, log.blocks, log.rings(count))
    scene.say(
        f"The keys that the Met still has open none of the {log.later} sightings since its right was withdrawn.",
        "On Spark each reader's view equals live delivery, row for row, and old keys open nothing new.",
    )
    scene.chapter("What if the statistics office could see the plate?")
    london_reports.whatif(console, transit, scene.policy, scene.versions, out)
    scene.summary.append("A policy change was tried on past events before anybody enforced it.")
    scene.chapter("What the brokers decided today, from their logs")
    logs = [out / "network" / f"{slug(broker.principal)}.decisions.jsonl" for broker, _, _ in BROKERS.values()]
    london_reports.audit_logs(console, spark, logs, scene.policy, out)
    scene.summary.append("The brokers' own logs show who used which right, and which rights nobody used.")
    spark.stop()
    scene.chapter("In short")
    summary = [f"  ✓ {line}" for line in scene.summary]
    console.print(*summary, sep="\n", highlight=False, markup=False, soft_wrap=True)
    scene.chapter("Try this next")
    steps = [f"  {command:<33}{what}" for command, what in NEXT]
    console.print(*steps, sep="\n", highlight=False, markup=False, soft_wrap=True)
    console.print(f"\n[bold green]done[/] in {time.perf_counter() - started:.1f} s", highlight=False)


def prepare(console: Console, out: Path) -> Scene:
    """Define the types, issue all capabilities, and write the files of the network."""
    first, second, to_manager = define_types()
    library = {first.definition.name: first, second.definition.name: second}
    types = TypeCache(network=NETWORK, types=library.get)
    versions = {"0": types.verify(first, NOW), "7f3a": types.verify(second, NOW)}
    issued = issue_credentials(versions["7f3a"].event_type)
    write_files(out / "network", library.values(), issued)
    roles = write_roles(out / "network")
    policy = PipelinePolicy(issued.all + to_manager, subscribers(*versions.values()), (roles.authority,))
    return Scene(console, versions, library, issued, roles, policy, out)


def introduce(scene: Scene) -> None:
    """Show what some of them may do."""
    authority = CapabilityAuthority(scene.policy.credentials)
    verified = scene.versions["7f3a"]
    table = Table("principal", "right", "attributes", "forced", "chain")
    for who, right in [
        (CAMERAS["Victoria"], Right.PUBLISH),
        (BILLING, Right.SUBSCRIBE),
        (STATISTICS, Right.SUBSCRIBE),
        (SMITH, Right.SUBSCRIBE),
        (CCS_BROKER, Right.ROUTE),
        (MET_BROKER, Right.ROUTE),
    ]:
        request = EventRequest(who.principal, right, verified, NOW)
        (branch,) = decide(request, [authority, scene.roles.authority]).require().branches
        plain = branch.as_dict({a.id: a.name for a in verified.event_type.attributes})
        shown = plain["attributes"] if isinstance(plain["attributes"], str) else ", ".join(plain["attributes"])  # type: ignore[arg-type]  # as_dict gives names
        forced = ", ".join(f"{name} = {value}" for name, value in plain.get("forced", {}).items())  # type: ignore[attr-defined]  # as_dict gives a dict
        issuers = [NAMES.show(link.certificate.statement.issuer) for link in authority.explain(request).links]
        if who == SMITH:
            issuers = ["Court", "role tracker of the Met"]
        chain = " → ".join([*dict.fromkeys(issuers), NAMES.show(who.principal)])
        table.add_row(NAMES.show(who.principal), right, shown, forced, chain)
    scene.console.print(table)
    scene.say(f"Version 7f3a was made by {NAMES.show(verified.signer)}, who may rename attributes and nothing else.")


# --- The network -----------------------------------------------------------------------------------------------------


async def run_network(
    scene: Scene, count: int, seed: int
) -> tuple[london_pipeline.Sent, london_pipeline.Live, SealedLog]:
    """Run brokers and clients. Everything has stopped when this returns.

    Return what was sent, what each reader got, and what lay sealed between.
    """
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with Company(scene.out / "network") as company:
        scene.chapter(f"The network: {len(DOMAINS)} domains, each with a broker of its own")
        offices = Offices(company, scene.issued)
        await start(scene, company, offices)
        async with Tap(company.urls["Thames Valley Broker"], tuple(scene.library.values()), scene.issued) as tap:
            # The key of the type, and those of two attributes.
            await eventually(lambda: tap.keys() == 3, "the statistics office's broker gets its keys")
            scene.chapter(f"{count:,} sightings, seed {seed}")
            sent, live = await publish(scene, company, count, seed)
            scene.chapter("The statistics office runs a broker of its own, which keeps every byte that it receives")
            kept = tuple(tap.blocks)
            tap.show(scene.console, scene.versions["0"].event_type, {event[_plate(event.type)] for _, event in sent})
            await carried(scene.console, company.urls["Thames Valley Broker"])
            scene.summary.append(f"{len(kept):,} sealed blocks went through a broker that cannot read any of them.")
            scene.chapter("What Detective Smith's role relies on is withdrawn, while cars pass")
            await withdraw_conditions(scene, company, offices)
            scene.chapter("What is refused, and why")
            await Refusals(scene.console, company.urls, scene.issued, scene.library).show()
            scene.summary.append("Every other attempt was refused, with the certificate that is missing.")
            scene.chapter("PITO takes the right to read from the Met: its broker loses the keys")
            rings = await company.fetch_keys("Met Broker", MET)
            await withdraw(scene.console, company.urls, PolicyAuthor(PITO), scene.issued.met_reads)
            shown = await company.ask("net", "show", "--key", "pito.key", *company.connection("PITO Broker"))
            told = "\n".join(f"  {line}" for line in _policy(shown))
            scene.console.print(told, markup=False, highlight=False, soft_wrap=True)
            scene.summary.append("A police force lost its right, and with it the keys of everything that came later.")
            later = await pass_later(scene, company, tap)
            await company.new_epoch()
            rings = await company.fetch_keys("CCS Broker", BILLING, STATISTICS) | rings
        if any(await company.stop_brokers()):
            raise SystemExit("a broker has not ended well; see its log")
    return sent, live, SealedLog((*kept, *later.blocks), later.events, rings)


async def start(scene: Scene, company: Company, offices: Offices) -> None:
    """Start all processes. Readers at other brokers than the cameras' first, so that they miss nothing."""
    with scene.console.status("  starting brokers"):
        await company.start_brokers()
    with scene.console.status("  starting services, cameras and readers"):
        await asyncio.gather(
            company.start_cameras({place: scene.spoken(place) for place in CAMERAS}),
            offices.start(),
            company.subscribe("Traffic Desk", TRAFFIC, "Met Broker", "7f3a"),
        )
        await company.hear_cameras("wanted")
        await asyncio.gather(
            company.subscribe("Detective Smith", SMITH, "Met Broker", "7f3a"),
            company.subscribe("Billing Office", BILLING, "CCS Broker", "7f3a"),
            company.subscribe("Statistics Office", STATISTICS, "CCS Broker", "0"),
            company.subscribe(_ASKING, STATISTICS, "CCS Broker", "0", PLATE_QUESTION),
        )
    scene.console.print(await _network(company))
    parts = f"{len(BROKERS)} brokers, {len(CAMERAS)} cameras, {len(company.readers)} readers"
    scene.say(
        f"{company.processes - 1} processes: {parts}, and two access control services.",
        f"Four organisations shared one network: {parts}.",
    )
    scene.say("All meet at the broker of Thames Valley Police, which has the right to carry sightings, and no other.")


#: commands for the end, and what each is good for
NEXT = (
    ("penstock dev", "change rights by hand, and watch what each reader sees"),
    ("penstock init demo", "start a network of your own"),
    ("docs/tutorial/first-network.md", "two organisations, step by step"),
    ("build/demo/audit.html", "who used which right, with plots; whatif.html beside it"),
)
_ASKING = "Statistics Office, asking for the plate"


async def _network(company: Company) -> str:
    """Return the tree of brokers when all of them are in it."""
    while True:
        told = await company.ask("net", "show", "--key", "pito.key", *company.connection("CCS Broker"))
        if all(broker in told for broker in company.urls):
            return _tree(told)
        await asyncio.sleep(0.2)


def _tree(told: str) -> str:
    """Return the tree of brokers of what `penstock net show` prints."""
    lines = told.splitlines()
    first = next(number for number, line in enumerate(lines) if "(this broker)" in line)
    rest = lines[first:]
    return "\n".join(f"  {line}" for line in rest[: rest.index("") if "" in rest else None])


async def publish(
    scene: Scene, company: Company, count: int, seed: int
) -> tuple[london_pipeline.Sent, london_pipeline.Live]:
    """Have the cameras publish the sightings, and return what was sent and what each reader got."""
    types = {name: verified.event_type for name, verified in scene.versions.items()}
    traffic = list(sightings(types, count, seed))
    sent: list[tuple[Principal, Event]] = [(CAMERAS[place].principal, event) for place, event in traffic]
    files = {
        place: write_sightings(
            company.folder / f"{slug(camera.principal)}.jsonl", [e for p, e in traffic if p == place]
        )
        for place, camera in CAMERAS.items()
    }
    began = time.perf_counter()
    bars = Progress(
        TextColumn("  {task.description:24}"), BarColumn(), MofNCompleteColumn(), console=scene.console, transient=True
    )
    with bars:
        watching = asyncio.create_task(_watch(bars, company, count))
        taken = sum(await asyncio.gather(*(company.cameras[place].send(file) for place, file in files.items())))
        if taken != count:
            raise SystemExit(f"the broker took {taken} of {count} sightings")
        readers = company.readers
        await eventually(
            lambda: all(
                readers[name].lines >= count for name in ("Billing Office", "Statistics Office", "Traffic Desk")
            ),
            "the offices get all sightings",
        )
        seconds = time.perf_counter() - began
        await _quiet(company)
        watching.cancel()
    live = {s.name: dict(readers[s.name].got) for s in scene.policy.subscribers}
    if any(reader.lines != len(reader.got) for reader in readers.values()):
        raise SystemExit("a sighting came twice")
    show_views(scene, live)
    places = {event.id: event["location"] for _, event in traffic}
    corrected = sum(values["location"] != places[id_] for id_, values in live["Statistics Office"].items())
    scene.say(
        f"{corrected:,} sightings claimed another place than their camera's; the broker set the right one.",
        f"Cameras cannot lie about their place: {corrected:,} wrong ones were set right.",
    )
    scene.say(
        "A filter sees what its owner sees: asking for the plate gives the statistics office nothing.",
        "Billing saw plates and no places, statistics places and no plates, and a filter cannot get around it.",
    )
    scene.say(f"From the first camera to the last reader: {seconds:.1f} s.")
    return sent, live


async def _watch(bars: Progress, company: Company, count: int) -> None:
    tasks = {
        name: bars.add_task(name.partition(",")[0], total=count) for name in ("Billing Office", "Statistics Office")
    }
    while True:
        for name, task in tasks.items():
            bars.update(task, completed=company.readers[name].lines)
        await asyncio.sleep(0.1)


async def _quiet(company: Company) -> None:
    """Wait until nothing has come to anybody for a while."""
    before = -1
    while before != (seen := sum(reader.lines for reader in company.readers.values())):
        before = seen
        await asyncio.sleep(0.3)


def show_views(scene: Scene, live: london_pipeline.Live) -> None:
    """Print what every reader saw, and what it never saw."""
    table = Table("subscriber", "events", "version", "saw", "never saw")
    for reader in scene.policy.subscribers:
        got, name = live[reader.name], reader.type.event_type.name
        seen = Counter(a for values in got.values() for a, value in values.items() if value is not None)
        attributes = list(reader.type.event_type.by_name)
        table.add_row(
            reader.name,
            f"{len(got):,}",
            name.version,
            ", ".join(a for a in attributes if seen[a]) or "nothing",
            ", ".join(a for a in attributes if not seen[a]) or "—",
        )
    scene.console.print(table)


# --- Live revocations ------------------------------------------------------------------------------------------------


async def withdraw_conditions(scene: Scene, company: Company, offices: Offices) -> None:
    """Let the suspect drive by again and again, and withdraw what the detective's role relies on, one by one."""
    table = Table("withdrawn", "at the", "Detective Smith got", "Traffic Desk got", "last sighting of hers")
    slowest = 0.0
    for number, condition in enumerate(scene.roles.conditions):
        if number:
            await company.leave("Detective Smith")
            await offices.restore(scene.roles.conditions[number - 1])
            await company.subscribe("Detective Smith", SMITH, "Met Broker", "7f3a")
        smith, desk = company.readers["Detective Smith"], company.readers["Traffic Desk"]
        before = desk.lines
        driving = asyncio.gather(*_drive(scene, company, f"before-{number}", 20, 25))
        await eventually(lambda smith=smith: _ids(smith, "before"), "Detective Smith follows the suspect")  # type: ignore[misc]
        asked = datetime.now(UTC)
        await offices.withdraw(condition)
        with scene.console.status("  waiting until her broker knows"):
            while not await offices.is_refused():
                await asyncio.sleep(0.01)
        known = datetime.now(UTC)
        published = sum(await driving) + sum(await asyncio.gather(*_drive(scene, company, f"after-{number}", 5, 5)))
        await eventually(
            lambda desk=desk, all_=before + published: desk.lines >= all_,  # type: ignore[misc]
            "the Traffic Desk gets all of it",
        )
        await _quiet(company)
        seen = [at for id_ in _ids(smith, "before") if isinstance(at := smith.got[id_]["timestamp"], datetime)]
        if _ids(smith, "after") or any(at > known for at in seen):
            raise SystemExit("something was delivered after the broker knew that the role had ended")
        took = max(0.0, (max(seen) - asked).total_seconds())
        slowest = max(slowest, took)
        got = f"{len(seen)} of {published}"
        table.add_row(
            condition.name, NAMES.show(condition.by.principal), got, f"all {published}", f"{took * 1000:.0f} ms"
        )
    scene.console.print(table)
    scene.say(
        "Her last sighting was published so long after the withdrawal. The Traffic Desk is at the same broker.",
        f"Withdrawing a court order, a case or a status cut a live subscription within {slowest * 1000:.0f} ms.",
    )


def _ids(reader: Reader, beginning: str) -> list[str]:
    """Return the ids of the sightings that a reader got, of those that begin like this."""
    return [id_ for id_ in reader.got if id_.startswith(beginning)]


class Later(NamedTuple):
    """Sightings that came later, and how they lay between the brokers."""

    events: int
    blocks: Sequence[bytes]


async def pass_later(scene: Scene, company: Company, tap: Tap) -> Later:
    """Have the suspect drive by once more, and wait until everybody has it who may."""
    before = len(tap.blocks)
    published = sum(await asyncio.gather(*_drive(scene, company, "later", 2, 5)))
    await eventually(lambda: tap.events(before) >= published, "the statistics office's broker gets all of it")
    return Later(published, tuple(tap.blocks[before:]))


def _drive(scene: Scene, company: Company, name: str, times: int, pause: int) -> Sequence[asyncio.Task[int]]:
    """Have every camera see the suspect so many times, with so many milliseconds between."""
    found = []
    for place, camera in company.cameras.items():
        event_type = scene.versions[scene.spoken(place)].event_type
        values: dict[str, Scalar] = {_plate(event_type): SUSPECT, "timestamp": NOW, "location": place}
        events = [Event.of(event_type, values, id=f"{name}-{place}-{n}", time=NOW) for n in range(times)]
        file = write_sightings(company.folder / f"{name}-{slug(CAMERAS[place].principal)}.jsonl", events)
        found.append(asyncio.create_task(camera.send(file, pause)))
    return found


def _plate(event_type: EventType) -> str:
    return "license-plate" if "license-plate" in event_type.by_name else "numberplate"


def _policy(told: str) -> Sequence[str]:
    """Return what `penstock net show` tells about policies."""
    lines = told.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("owner")]
    return lines[starts[-1] :] if starts else lines


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="The London congestion charge example.")
    arguments.add_argument("--events", type=int, default=20_000, help="how many sightings to publish")
    arguments.add_argument("--seed", type=int, default=2003, help="the seed of the traffic")
    arguments.add_argument("--out", type=Path, default=Path("build/demo"), help="where files, logs and reports go")
    given = arguments.parse_args()
    try:
        main(given.events, given.seed, given.out)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit("stopped, and everything that was started with it") from None
