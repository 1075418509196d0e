"""`penstock pep ask` and `penstock pdp serve --fabric` as people run them, and when processes are killed."""

import asyncio
import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from itertools import count
from pathlib import Path

import pytest
from tests.apps.conftest import Shell
from tests.apps.node_kit import LONGEST, bounded, eventually
from tests.apps.pdp_kit import EVALUATION, Serving, serving
from tests.copies import Copy

from penstock.apps.answer_links import AnswerLinks
from penstock.apps.cli.shared.credentials import load_credentials
from penstock.apps.cli.shared.decision_options import DropNotes
from penstock.apps.cli.shared.options import open_key
from penstock.authority.decisions.coverage import request_key
from penstock.authority.decisions.decision_point import TOPICS
from penstock.authority.decisions.enforcement_point import AskPath, EnforcementPoint, PointAddress
from penstock.authority.decisions.modes import AskedDecision
from penstock.authority.decisions.questions import AccessQuestion, Entity
from penstock.authority.decisions.rights import DecisionRights
from penstock.authority.decisions.secondary_point import SecondaryPoint
from penstock.authority.decisions.updates import UpdateTopics
from penstock.errors import RefusedError
from penstock.fabric import Sample
from penstock.fabric.nats import NatsFabric
from penstock.testing.nats import NatsServer
from penstock.testing.server_process import free_ports

POLICY = """namespace ward {{
    attribute kind {{ category = resource id = "urn:penstock:authzen:resource-type" type = string }}
    attribute role {{ category = subject id = "role" type = string }}
    policy records {{
        apply deny-unless-permit
        target clause kind == "record"
        rule doctors {{ permit target clause role == "{role}" }}
    }}
}}"""
DOCTOR = ("--subject", "user:alice", "--action", "read", "--resource", "record:7", "--set", "subject.role=doctor")


def lay_out(shell: Shell, role: str = "doctor") -> Path:
    """Make keys, the certificates of two decision points and one enforcement point, and a bundle."""
    for who in ("hospital", "pdp1", "pdp2", "pep", "stranger"):
        shell.ok("key", "new", f"{who}.key", "--name", who)
    for who, right in (("pdp1", "decide"), ("pdp2", "decide"), ("pep", "ask")):
        shell.ok(
            *("cert", "issue", "--key", "hospital.key", "--to", who, "--decisions", "hospital/record:*"),
            *("--right", right, "--days", "3650", "--out", f"{who}.cert"),
        )
    bundle = shell.folder / "bundle"
    bundle.mkdir()
    (bundle / "root.policy").write_text(POLICY.format(role=role))
    return bundle


def point(server: NatsServer, who: str, *more: str) -> list[str]:
    return [
        *("--fabric", server.url, "--fabric-prefix", f"cli{id(server) % 1000}", "--key", f"{who}.key"),
        *("--owner", "hospital", "--credential", "pep.cert", *more),
    ]


def asking(server: NatsServer, *more: str) -> list[str]:
    return [
        *("pep", "ask", "--fabric", server.url, "--fabric-prefix", f"cli{id(server) % 1000}", "--key", "pep.key"),
        *("--owner", "hospital", "--credential", "pdp1.cert", "--credential", "pdp2.cert", *more),
    ]


@contextmanager
def serving_on(bundle: Path, server: NatsServer, who: str, *more: str) -> Iterator[Serving]:
    with serving(bundle, *point(server, who), *more, log=bundle.parent / f"{who}.log") as pdp:
        yield pdp


@contextmanager
def doomed(bundle: Path, server: NatsServer, who: str, *more: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `penstock pdp serve` until it is killed."""
    words = ["pdp", "serve", str(bundle), "--listen", "127.0.0.1:0", "-o", "json", *point(server, who), *more]
    process = Copy(words, stdout=subprocess.PIPE, text=True)
    with bounded(process):
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process


def test_a_service_answers_over_http_and_a_fabric_by_the_same_policies(penstock: Shell, server: NatsServer) -> None:
    bundle = lay_out(penstock)
    with serving_on(
        bundle, server, "pdp1", "--log", "decisions.jsonl", "--watch", "50ms", "--links", "127.0.0.1:0"
    ) as pdp:
        question = {
            "subject": {"type": "user", "id": "alice", "properties": {"role": "doctor"}},
            "action": {"name": "read"},
            "resource": {"type": "record", "id": "7"},
        }
        assert pdp.decides(question)
        ran = penstock.ok(*asking(server, *DOCTOR, "--timeout", "30s"))
        assert ran.out.startswith("✓ Permit\n")
        data = json.loads(penstock.ok(*asking(server, *DOCTOR, "--timeout", "30s", "-o", "json")).out)
        [answer] = data["answers"]
        assert (data["permitted"], answer["rests_on"][0]["revision"]) == (True, pdp.revision)
        assert "doctor" in answer["holds_for"]
        (penstock.folder / "question.json").write_text(json.dumps(question))
        assert penstock.ok(*asking(server, "--request", "question.json", "--timeout", "30s")).out.startswith("✓ Permit")
        # From one answer follow others.
        (penstock.folder / "asked.jsonl").write_text(json.dumps(question) + "\n")
        explaining = [*asking(server, "--after", "asked.jsonl", "--timeout", "30s")]
        explaining[1] = "explain"
        bob = (*DOCTOR[:1], "user:bob", *DOCTOR[2:])
        first, second, third = penstock.ok(*explaining, *bob).out.splitlines()[:3]
        assert first.startswith("Permit: user bob may read record 7, recycled from one answer: the answer holds for a")
        assert second.startswith("  Permit for user alice: read record 7, by ed25519:")
        assert third.startswith("    it holds for every request with ")
        nothing = penstock(*explaining, *bob[:-1], "subject.role=nurse", "-o", "json")
        assert (nothing.status, json.loads(nothing.out)) == (1, {"recycled": False})
        # Straight back, and point to point.
        back = ("--straight-back", "127.0.0.1:0")
        assert penstock.ok(*asking(server, *DOCTOR, "--timeout", "30s", *back)).status == 0
        line = (penstock.folder / "pdp1.log").read_text()
        port = line.rpartition("127.0.0.1:")[2].split()[0]
        direct = ("--point", f"127.0.0.1:{port}=pdp1")
        assert penstock.ok(*asking(server, *DOCTOR, "--timeout", "30s", *direct)).status == 0
        # Deny, and a resource that no policy covers.
        nurse = penstock(*asking(server, *DOCTOR[:-1], "subject.role=nurse", "--timeout", "30s"))
        assert (nurse.status, nurse.out[:6]) == (1, "✗ Deny")
        assert "pdp.not-permitted" in nurse.err
        other = penstock(*asking(server, *DOCTOR[:5], "invoice:7", "--timeout", "200ms", "-o", "json"))
        assert (other.status, json.loads(other.out)) == (1, {"permitted": False, "code": "pep.no-answer"})
        # The decisions are recorded, and policies are followed.
        assert (penstock.folder / "decisions.jsonl").read_text().count('"endpoint":"fabric"') == 10
        new = bundle / "root.new"
        new.write_text(POLICY.format(role="nurse"))
        new.rename(bundle / "root.policy")
        eventually(lambda: penstock(*asking(server, *DOCTOR, "--timeout", "30s")).status == 1)
        assert not pdp.decides(question)
        assert pdp.ask(EVALUATION, question).status == 200


LEVELS = """namespace ward {
    attribute kind { category = resource id = "urn:penstock:authzen:resource-type" type = string }
    attribute does { category = action id = "urn:oasis:names:tc:xacml:1.0:action:action-id" type = string }
    attribute clearance { category = subject id = "clearance" type = integer }
    attribute level { category = resource id = "level" type = integer }
    policy records {
        apply deny-unless-permit
        target clause kind == "record"
        rule reads { permit target clause does == "view" condition clearance >= level }
        rule appends { permit target clause does == "log" condition clearance <= level }
        rule writes { permit target clause does == "edit" condition clearance == level }
    }
}"""
LABELS = ("--labels", "read=view", "--labels", "append=log,list", "--labels", "write=edit")


def labelled(bundle: Path, **levels: int) -> None:
    """Give users and records their labels."""
    users = [{"type": "user", "id": name, "properties": {"clearance": 2}} for name in ("alice", "bob")]
    records = [{"type": "record", "id": name, "properties": {"level": level}} for name, level in levels.items()]
    new = bundle / "entities.new"
    new.write_text(json.dumps({"subjects": users, "resources": records}))
    new.rename(bundle / "entities.json")


def test_a_changed_bundle_leaves_answers_that_it_does_not_affect(penstock: Shell, server: NatsServer) -> None:
    bundle = lay_out(penstock)
    (bundle / "root.policy").write_text(LEVELS)
    labelled(bundle, r1=1, r2=1)
    key, prefix = open_key("pep.key", None), f"cli{id(server) % 1000}"
    owner = open_key("hospital.key", None).principal
    rights = DecisionRights(owner, load_credentials(("pdp1.cert",)))

    async def play(revision: str) -> None:
        async def until(condition: Callable[[], bool]) -> None:
            while not condition():  # another process
                await asyncio.sleep(0.01)

        async with (
            asyncio.timeout(LONGEST),
            await NatsFabric.connect(server.url, prefix=prefix) as fabric,
            SecondaryPoint(fabric, key, rights.may_decide, None) as secondary,
            EnforcementPoint(fabric, key, rights, timeout=30.0, secondary=secondary) as point,
        ):
            one, two = (AccessQuestion.of(("user", "alice"), "view", ("record", name)) for name in ("r1", "r2"))
            await point.ask(one)
            await secondary.followed(30.0)
            decided = [await point.ask(question) for question in (one, two)]
            assert [decision.effect for decision in decided] == ["Permit", "Permit"]
            [pdp] = {answer.value.point for decision in decided for answer in decision.answers}
            assert secondary.cache.policies(pdp) == {"ward.records": revision}
            # The label of one record changes.
            labelled(bundle, r1=3, r2=1)
            await until(lambda: secondary.cache.policies(pdp) != {"ward.records": revision})
            assert secondary.find(one) is None
            kept = secondary.find(two)
            assert (kept and kept.effect, secondary.counts["next"]) == ("Permit", 1)
            assert (await point.ask(one)).effect == "Deny"

    with serving_on(bundle, server, "pdp1", *LABELS, "--watch", "50ms", "--lifetime", "1h") as pdp:
        # Labels along a path answer what nobody asked.
        asked = [("alice", "edit", "r1"), ("bob", "edit", "r1"), ("bob", "view", "r2")]
        labelled(bundle, r1=2, r2=1)
        lines = [AccessQuestion.of(("user", who), what, ("record", item)).text for who, what, item in asked]
        (penstock.folder / "asked.jsonl").write_text("\n".join(lines))
        explaining = asking(server, "--after", "asked.jsonl", "--timeout", "30s", "--subject", "user:alice")
        explaining[1] = "explain"
        words = (*explaining, "--action", "view", "--resource", "record:r2", "-o", "json")
        eventually(lambda: pdp.decides(json.loads(lines[0])) is True)
        found = json.loads(penstock.ok(*words).out)
        assert (found["effect"], found["rule"], len(found["answers"])) == ("Permit", "path", 3)
        assert found["over"] == ["user alice", "record r1", "user bob", "record r2"]
        labelled(bundle, r1=1, r2=1)
        eventually(lambda: pdp.decides(json.loads(lines[0])) is False)
        asyncio.run(play(pdp.ask(EVALUATION, lines[0].encode()).headers["x-policy-revision"]))


def test_a_mode_that_is_missing_or_misspelt_is_named(penstock: Shell) -> None:
    bundle = lay_out(penstock)
    for written, hint in (("view", "such as"), ("raed=view", "did you mean `read`")):
        point = ("--fabric", "embedded", "--key", "pdp1.key", "--owner", "hospital", "--credential", "pep.cert")
        ran = penstock("pdp", "serve", str(bundle), "--listen", "127.0.0.1:0", *point, "--labels", written)
        assert ran.code == "cli.usage"
        assert "read, append or write" in ran.err
        assert hint in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ("--labels", "read=view"),
        ("--labels", "read=view", "--labels", "append=", "--labels", "write=edit"),
        ("--labels", "read=view", "--labels", "append=view", "--labels", "write=edit"),
        ("--labels", "reads=view"),
        (*LABELS, "--labels", "own=edit"),
        (*LABELS, "--roles", "role"),
    ],
)
def test_labels_are_declared_for_each_mode(penstock: Shell, words: tuple[str, ...]) -> None:
    bundle = lay_out(penstock)
    point = ("--fabric", "embedded", "--key", "pdp1.key", "--owner", "hospital", "--credential", "pep.cert")
    ran = penstock("pdp", "serve", str(bundle), "--listen", "127.0.0.1:0", *point, *words)
    assert (ran.status, ran.out) == (2, "")


def test_a_shared_cache_answers_when_the_decision_point_is_gone(penstock: Shell, server: NatsServer) -> None:
    bundle = lay_out(penstock)
    penstock.ok("key", "new", "cache.key", "--name", "cache")
    words = [
        *("pep", "serve-cache", "--fabric", server.url, "--fabric-prefix", f"cli{id(server) % 1000}"),
        *("--key", "cache.key", "--owner", "hospital", "--credential", "pdp1.cert", "--credential", "pep.cert"),
    ]
    cache = Copy([*words, "--max-age", "60s", "-o", "json"], stdout=subprocess.PIPE, text=True)
    with bounded(cache):
        assert cache.stdout is not None
        assert json.loads(cache.stdout.readline())["fabric"] == server.url

        async def heartbeats() -> None:
            async with (
                asyncio.timeout(LONGEST),
                await NatsFabric.connect(server.url, prefix=f"cli{id(server) % 1000}") as fabric,
                await fabric.subscribe(UpdateTopics().updates) as beats,
            ):
                # The first can have been on its way before.
                await anext(aiter(beats))
                await anext(aiter(beats))

        with serving_on(bundle, server, "pdp1", "--lifetime", "1h"):
            # A cache follows a decision point after its first answer, from the next heartbeat on.
            penstock.ok(*asking(server, *DOCTOR, "--timeout", "30s"))
            asyncio.run(heartbeats())
            penstock.ok(*asking(server, *DOCTOR, "--timeout", "30s"))
        asked = penstock.ok(*asking(server, *DOCTOR, "--timeout", "30s", "-o", "json"))
        [answer] = json.loads(asked.out)["answers"]
        assert answer["point"] == str(open_key("pdp1.key", None).principal)
        assert penstock(*asking(server, *DOCTOR[:-1], "subject.role=nurse", "--timeout", "200ms")).status == 1
        cache.send_signal(signal.SIGTERM)
        assert cache.wait(LONGEST) == 0
    for fabric in ((), ("--fabric", "embedded")):
        ran = penstock("pep", "serve-cache", "--key", "cache.key", *fabric)
        assert (ran.status, "cli.usage" in ran.err) == (2, True)


def test_who_may_ask_and_who_may_answer(penstock: Shell, server: NatsServer) -> None:
    bundle = lay_out(penstock)
    base = ["pdp", "serve", str(bundle), "--listen", "127.0.0.1:0", "--fabric", server.url]
    assert "cli.usage" in penstock(*base).err
    assert "pdp.open" in penstock(*base, "--key", "pdp1.key").err
    with serving_on(bundle, server, "stranger"):
        # Its answers do not count.
        ran = penstock(*asking(server, *DOCTOR, "--timeout", "500ms"))
        assert (ran.status, "pep.not-believed" in ran.err) == (1, True)
        # Who may not ask gets none.
        stranger = [word.replace("pep.key", "pdp2.key") for word in asking(server, *DOCTOR, "--timeout", "200ms")]
        assert "pep.no-answer" in penstock(*stranger).err


@pytest.mark.parametrize(
    "words",
    [
        ("--subject", "user:alice"),
        ("--request", "question.json", *DOCTOR),
        (*DOCTOR[:1], "alice", *DOCTOR[2:]),
        (*DOCTOR, "--set", "role=doctor"),
        (*DOCTOR, "--point", "127.0.0.1:1"),
        (*DOCTOR, "--straight-back", "here"),
        DOCTOR,
    ],
)
def test_questions_that_make_no_sense(penstock: Shell, words: tuple[str, ...]) -> None:
    penstock.ok("key", "new", "pep.key")
    ran = penstock("pep", "ask", "--key", "pep.key", *words)
    assert (ran.status, "cli.usage" in ran.err) == (2, True)


def test_rights_on_decisions_are_shown_and_checked(penstock: Shell) -> None:
    lay_out(penstock)
    shown = json.loads(penstock.ok("cert", "show", "pdp1.cert", "-o", "json").out)
    assert '"decision"' in json.dumps(shown)
    issue = ("cert", "issue", "--key", "hospital.key", "--to", "pep", "--days", "1", "--out", "x.cert")
    assert "capability.right" in penstock(*issue, "--decisions", "hospital/record", "--right", "publish").err
    assert "capability.right" in penstock(*issue, "--network", "hospital/x", "--right", "ask").err
    assert "cli.rights" in penstock(*issue, "--decisions", "hospital/record").err
    assert "name.malformed" in penstock(*issue, "--decisions", "record", "--right", "ask").err
    penstock.ok(*issue, "--decisions", "*/*", "--all-rights")


def test_nothing_hangs_and_nothing_is_permitted_when_processes_are_killed(penstock: Shell) -> None:
    """On all three paths: kill an enforcement point, decision points and the NATS server, each in mid-request."""
    bundle, ids = lay_out(penstock), count(7)
    places = {who: f"127.0.0.1:{port}" for who, port in zip(("pdp1", "pdp2"), free_ports(2), strict=True)}

    def doctor() -> AccessQuestion:
        """Return a question that nobody has asked."""
        return AccessQuestion.of(Entity("user", "alice", {"role": "doctor"}), "read", ("record", str(next(ids))))

    async def outcome(enforcing: EnforcementPoint, question: AccessQuestion) -> AskedDecision | str:
        began = time.monotonic()
        try:
            return await enforcing.ask(question)
        except RefusedError as error:
            assert time.monotonic() - began < 20
            return error.code

    async def play(server: NatsServer) -> None:
        owner = open_key("hospital.key", None).principal
        rights = DecisionRights(owner, load_credentials(["pdp1.cert", "pdp2.cert"]))
        key, prefix = open_key("pep.key", None), f"cli{id(server) % 1000}"
        points = [PointAddress(place, open_key(f"{who}.key", None).principal) for who, place in places.items()]
        paths: dict[AskPath, EnforcementPoint] = {}
        passed_on: set[str] = set()

        async def see(sample: Sample) -> None:
            passed_on.add(sample.key)

        async def in_flight(question: AccessQuestion) -> None:
            """Wait until the server has passed a request on."""
            async with asyncio.timeout(60):
                while request_key(question) not in passed_on:
                    await asyncio.sleep(0.002)

        async def until_permitted(*which: AskPath) -> None:
            async with asyncio.timeout(60):
                for path in which or AskPath:
                    while isinstance(found := await outcome(paths[path], doctor()), str):
                        await asyncio.sleep(0.01)
                    assert found.permits()

        async def ask() -> "dict[AskPath, asyncio.Future[AskedDecision | str]]":
            """Ask on all paths, and wait until the requests are under way."""
            asked: dict[AskPath, asyncio.Future[AskedDecision | str]] = {}
            for path, enforcing in paths.items():
                question = doctor()
                asked[path] = asyncio.ensure_future(outcome(enforcing, question))
                if path is AskPath.DIRECT:
                    await asyncio.sleep(0)  # it has an open link, and has written to it
                else:
                    await in_flight(question)
            return asked

        async with asyncio.timeout(LONGEST), AsyncExitStack() as stack:
            watching = await stack.enter_async_context(await NatsFabric.connect(server.url, prefix=prefix, timeout=1.0))
            await TOPICS.declare(watching)
            await watching.subscribe(TOPICS.requests, callback=see)
            for path in AskPath:
                fabric = await stack.enter_async_context(
                    await NatsFabric.connect(server.url, prefix=prefix, timeout=1.0)
                )
                links = await stack.enter_async_context(AnswerLinks(key, owner, "127.0.0.1"))
                made = EnforcementPoint(fabric, key, rights, path=path, timeout=0.5, links=links, points=points)
                paths[path] = await stack.enter_async_context(made)
            with (
                doomed(bundle, server, "pdp1", "--links", places["pdp1"]) as first,
                doomed(bundle, server, "pdp2", "--links", places["pdp2"]) as second,
            ):
                await until_permitted()
                for process in (first, second):
                    process.send_signal(signal.SIGSTOP)
                # Enforcement points die in the middle of a request, one while it opens the link for it.
                silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                silent.setblocking(False)
                direct = ("--point", f"127.0.0.1:{silent.getsockname()[1]}=pdp1")
                for number, more in enumerate(((), ("--straight-back", "127.0.0.1:0"), direct)):
                    resource = ("record", f"dying-{number}")
                    words = asking(server, *DOCTOR[:5], ":".join(resource), "--timeout", "50s", *more)
                    waiting = Copy(words, stdout=subprocess.PIPE, text=True)
                    with bounded(waiting):
                        if more is direct:
                            async with asyncio.timeout(60):
                                stack.enter_context((await asyncio.get_running_loop().sock_accept(silent))[0])
                        else:
                            await in_flight(AccessQuestion.of(("user", "alice"), "read", resource))
                        waiting.kill()
                        assert (waiting.communicate(timeout=60)[0], waiting.returncode) == ("", -signal.SIGKILL)
                # Both decision points have requests and have not answered them. One dies, and the other goes on.
                asked = await ask()
                first.kill()
                first.wait(60)
                second.send_signal(signal.SIGCONT)
                for found in asked.values():
                    assert not isinstance(await found, str) or await found == "pep.no-answer"
                await until_permitted()
                # The only one that is left dies in the middle of a request.
                second.send_signal(signal.SIGSTOP)
                asked = await ask()
                second.kill()
                assert {await found for found in asked.values()} == {"pep.no-answer"}
            # One is restarted. The server dies in the middle of a request, and nothing is permitted until it is back.
            with serving_on(bundle, server, "pdp1", "--links", places["pdp1"]) as again:
                await until_permitted()
                again.process.send_signal(signal.SIGSTOP)
                asked = await ask()
                server.kill()
                again.process.send_signal(signal.SIGCONT)
                assert isinstance(await asked.pop(AskPath.FABRIC), str)
                for path, found in asked.items():
                    # These answers do not need the server any more.
                    assert not isinstance(await found, str) or await found == "pep.no-answer", path
                assert isinstance(await outcome(paths[AskPath.FABRIC], doctor()), str)
                assert isinstance(await outcome(paths[AskPath.STRAIGHT_BACK], doctor()), str)
                await until_permitted(AskPath.DIRECT)
                server.start()
                await until_permitted()

    with NatsServer() as server:
        asyncio.run(play(server))


def test_errors_of_the_fabric_are_reported(penstock: Shell) -> None:
    penstock.ok("key", "new", "pep.key")
    ran = penstock("pep", "ask", "--key", "pep.key", "--fabric", "nats://127.0.0.1:1", *DOCTOR)
    assert (ran.status, "fabric.unreachable" in ran.err) == (3, True)
    assert "cli.usage" in penstock("pep", "ask", "--key", "pep.key", "--fabric", "http://x", *DOCTOR).err


def test_strangers_cannot_fill_the_log() -> None:
    said: list[str] = []
    now = 100.0
    notes = DropNotes(said.append, lambda: now)
    for code in ("key.bad-signature", "key.bad-signature", "sexp.syntax", "key.bad-signature"):
        notes(RefusedError(code, "junk"))
    assert [line.rpartition(" ")[2] for line in said] == ["key.bad-signature", "sexp.syntax"]
    now = 160.0
    notes(RefusedError("key.bad-signature", "junk"))
    assert len(said) == 3
