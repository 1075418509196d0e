"""Options of decision and enforcement points: fabric, owner, certificates, questions; decisions, and what they log."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any, Final

from penstock.apps.cli.shared.commands import CommandAnswer, option, option_class
from penstock.apps.cli.shared.credentials import load_credentials
from penstock.apps.cli.shared.events import split_pair
from penstock.apps.cli.shared.files import read_bytes, read_sexp, within
from penstock.apps.cli.shared.names import NameBook
from penstock.apps.cli.shared.nats_options import nats_login, nats_login_option
from penstock.apps.cli.shared.options import WHO, Duration
from penstock.apps.cli.shared.session import aside
from penstock.authority.decisions.cloud_events import read_key_id
from penstock.authority.decisions.messages import AccessAnswer
from penstock.authority.decisions.modes import AskedDecision
from penstock.authority.decisions.questions import AccessQuestion, Entity, read_question
from penstock.authority.decisions.rights import DecisionRights
from penstock.crypto import PublicKey
from penstock.errors import MalformedError, PenstockError, RefusedError
from penstock.fabric import Fabric
from penstock.fabric.addresses import DDS, EMBEDDED, KAFKA, open_fabric
from penstock.fabric.nats_login import NatsLogin
from penstock.model.principals import Principal
from penstock.policy.syntax.json.requests import Json, read_json


@option_class
class FabricOptions:
    """The fabric, the owner of the decisions, and certificates."""

    fabric: str | None = option(
        "--fabric",
        metavar="URL",
        envvar="PENSTOCK_FABRIC",
        help="Use the fabric of these NATS servers, of Kafka (kafka://HOST:PORT), of a DDS domain (dds://HOST/DOMAIN),"
        f" or `{EMBEDDED}` for one inside this process.",
    )
    login_files: tuple[str, ...] = nats_login_option()
    prefix: str = option(
        "--fabric-prefix",
        default="penstock",
        show_default=True,
        metavar="WORD",
        help="Begin the subjects of NATS, or the names of Kafka or DDS topics, with this.",
    )
    owner: str | None = option(
        "--owner", help="Name the owner of the decisions, whose certificates count (default: the key's).", **WHO
    )
    certificates: tuple[str, ...] = option(
        "--credential",
        multiple=True,
        metavar="FILE",
        help="Read certificates that say who may decide and who may ask. Can be repeated.",
    )

    def login(self) -> NatsLogin | None:
        """Return the login to the NATS servers, if they are the fabric. Raises `MalformedError` (`cli.usage`)."""
        if self.fabric is None or self.fabric == EMBEDDED or self.fabric.startswith((DDS, KAFKA)):
            return None
        return nats_login("--fabric", (self.fabric,), self.login_files)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Fabric | None]:
        """Open the fabric, if there is one. Raises `MalformedError` (`cli.usage`), and as `open_fabric`."""
        login = self.login()
        if self.fabric is None:
            yield None
        else:
            async with await open_fabric(login or self.fabric, prefix=self.prefix) as fabric:
                yield fabric

    def owner_of(self, names: NameBook, key: Principal) -> Principal:
        """Return the owner of the decisions. Raises as `NameBook.principal`."""
        return key if self.owner is None else names.principal(self.owner)

    def rights(self, owner: Principal) -> DecisionRights:
        """Return the rights that the certificates give. Raises as `load_credentials`."""
        return DecisionRights(owner, load_credentials(self.certificates))


#: seconds in which requests that are dropped for one reason are reported once
_NOTED: Final = 60.0


class DropNotes:
    """Report why requests are dropped, each code once a minute: strangers must not be able to fill the log."""

    def __init__(self, note: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._note = note
        self._clock = clock
        self._noted: dict[str, float] = {}

    def __call__(self, error: PenstockError) -> None:
        """Report an error, or not."""
        now = self._clock()
        if now - self._noted.get(error.code, -inf) >= _NOTED:
            self._noted[error.code] = now
            self._note(f"requests or answers are dropped: {error.code}")


def log_line(line: str) -> None:
    """Print a line with the time on standard error."""
    aside(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}")


def read_resource(text: str, what: str) -> Entity:
    """Read `TYPE:ID`. Raises `MalformedError` (`cli.usage`)."""
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise MalformedError("cli.usage", f"`{text[:80]}` is not a {what}", hint="write TYPE:ID, as document:report-7")
    return Entity(kind, name)


def public_key(text: str) -> PublicKey:
    """Read a public key: a file, or its 32 bytes in Base64. Raises `MalformedError`, and as `read_sexp`."""
    if not Path(text).is_file():
        return read_key_id(text)
    value = read_sexp(text)
    with within(text):
        return PublicKey.from_sexp(value)


# ----------------------------------------------------------------------------------------------------------------------
# Questions, and the decisions about them.


@option_class
class QuestionOptions:
    """A question: from a file, or from options."""

    request_file: str | None = option(
        "--request", metavar="FILE", help="Read the question from this file, as AuthZEN writes it; - is standard input."
    )
    subject: str | None = option("--subject", metavar="TYPE:ID", help="Ask about this subject.")
    action: str | None = option("--action", metavar="NAME", help="Ask about this action.")
    resource: str | None = option("--resource", metavar="TYPE:ID", help="Ask about this resource.")
    properties: tuple[str, ...] = option(
        "--set",
        multiple=True,
        metavar="WHERE.NAME=VALUE",
        help="Give a property of the subject, action, resource or context, as JSON or text. Can be repeated.",
    )

    def read(self) -> AccessQuestion:
        """Return the question. Raises `MalformedError` (`cli.usage`, `pdp.request`, `xacml.json`)."""
        if self.request_file is not None:
            if self.subject or self.action or self.resource or self.properties:
                raise MalformedError("cli.usage", "--request is a whole question")
            data = read_bytes(self.request_file)
            with within(self.request_file):
                found = read_json(data)
                return read_question(found if isinstance(found, dict) else {})
        if self.subject is None or self.action is None or self.resource is None:
            raise MalformedError("cli.usage", "give --subject, --action and --resource, or --request")
        places: dict[str, dict[str, Json]] = {"subject": {}, "action": {}, "resource": {}, "context": {}}
        for written in self.properties:
            name, value = split_pair(written, "WHERE.NAME=VALUE")
            where, dot, rest = name.partition(".")
            if not dot or where not in places:
                raise MalformedError("cli.usage", f"`{name[:80]}` is not WHERE.NAME", hint="such as subject.role")
            places[where][rest] = _value(value)
        subject, resource = read_resource(self.subject, "subject"), read_resource(self.resource, "resource")
        return AccessQuestion(
            replace(subject, properties=places["subject"]),
            Entity("", self.action, places["action"]),
            replace(resource, properties=places["resource"]),
            places["context"],
        )


def _value(text: str) -> Json:
    try:
        return read_json(text.encode())
    except MalformedError:
        return text


def _data(decision: AskedDecision, refusal: RefusedError | None) -> dict[str, object]:
    return {
        "permitted": refusal is None,
        "effect": decision.effect,
        "reason": None if refusal is None else refusal.fields["reason"],
        "disagreed": decision.disagreed,
        "obligations": [{"id": duty.id, "attributes": [*map(list, duty.assigned)]} for duty in decision.obligations],
        "advice": [{"id": duty.id, "attributes": [*map(list, duty.assigned)]} for duty in decision.advice],
        "answers": [answer_data(answer.value) for answer in decision.answers],
    }


def answer_data(answer: AccessAnswer) -> dict[str, object]:
    """Return an answer as plain data."""
    return {
        "point": str(answer.point),
        "effect": answer.effect,
        "status": answer.status,
        "issued": answer.issued.isoformat(),
        "until": answer.until.isoformat(),
        "rests_on": [
            {"id": policy.id, "revision": policy.revision, "changed": policy.changed.isoformat()}
            for policy in answer.rests_on
        ],
        "holds_for": answer.holds_for,
    }


def _shown(decision: AskedDecision, *, permitted: bool) -> Iterator[str]:
    yield f"{'✓' if permitted else '✗'} {decision.effect}"
    for duty in decision.obligations:
        yield f"  obligation {duty.id}"
        yield from (f"    {name} = {value}" for name, _, value in duty.assigned)
    for answer in decision.answers:
        found = answer.value
        rests = ", ".join(f"{policy.id} revision {policy.revision}" for policy in found.rests_on) or "no policy"
        yield f"  {found.point.short}: {found.effect}, resting on {rests}, until {found.until:%H:%M:%S} UTC"


def wait_option(longest: float, default: str, help_: str) -> Any:
    """Declare `--timeout`."""
    return option(
        "--timeout",
        type=Duration(longest, above=0.0),
        default=default,
        show_default=True,
        metavar="DURATION",
        help=help_,
    )


def fulfil_option() -> Any:
    """Declare `--fulfil`."""
    return option("--fulfil", multiple=True, metavar="ID", help="Fulfil obligations with this id. Can be repeated.")


def decision_answer(asking: Coroutine[Any, Any, AskedDecision], understood: Iterable[str]) -> CommandAnswer:
    """Ask, and return the decision as the answer of a command.

    It refuses if there is no decision, or if it does not permit with these obligations fulfilled.
    """
    try:
        decision = asyncio.run(asking)
    except RefusedError as error:
        return CommandAnswer({"permitted": False, "code": error.code}, (), error)
    refusal = decision.refusal(frozenset(understood))
    return CommandAnswer(lambda: _data(decision, refusal), _shown(decision, permitted=refusal is None), refusal)
