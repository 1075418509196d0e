"""`penstock pdp` and `penstock policy`: decide by attribute-based policies, and work with them."""

import asyncio
import ipaddress
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from penstock.apps.answer_links import AnswerLinks
from penstock.apps.cli.policy.acl import acl
from penstock.apps.cli.policy.analysis import analyse, diff, residual
from penstock.apps.cli.policy.explanation import explain_decision
from penstock.apps.cli.policy.files import check, convert, fmt, read_request_file, read_root, run_tests
from penstock.apps.cli.policy.sql import sql
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    option,
    option_class,
    output_option,
    wants_data,
)
from penstock.apps.cli.shared.decision_options import DropNotes, FabricOptions, log_line, public_key
from penstock.apps.cli.shared.files import read_bytes, within
from penstock.apps.cli.shared.names import load_names
from penstock.apps.cli.shared.options import AtOption, Duration, NamesOption, open_key, passphrase_option
from penstock.apps.cli.shared.session import CommandSession, Verbs
from penstock.apps.cli.shared.terminal import show
from penstock.apps.http.bundles import Bundle, load
from penstock.apps.http.decision_source import BundleSource, PointSettings
from penstock.apps.http.journal import Journal
from penstock.apps.http.service import (
    DecisionService,
    RunningService,
    ServiceConfig,
    ServiceSettings,
    read_callers,
    tls_context,
)
from penstock.authority.decisions.authzen_events import EventDecisionPoint
from penstock.authority.decisions.coverage import resources
from penstock.authority.decisions.decision_point import AskRate, PolicyDecisionPoint
from penstock.authority.decisions.messages import LabelRecycling, RecyclingClass, RoleRecycling
from penstock.authority.decisions.policy_feed import PolicyFeed
from penstock.crypto import SigningKey
from penstock.errors import MalformedError, PenstockError, RefusedError, did_you_mean
from penstock.policy.combining import POLICY_COMBINING, PREFIX, DecisionTuple, combined, combined_responses
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import decide
from penstock.policy.engine.lookup import Repository, check_policies
from penstock.policy.language.results import PolicyOutcome, Response, Result, XacmlDecision
from penstock.policy.syntax.json import requests as json_requests
from penstock.policy.syntax.json import requests as json_written
from penstock.policy.syntax.json.requests import write_response
from penstock.policy.syntax.xml import requests as xml_requests

XML = "xml"
_MARKS = {XacmlDecision.PERMIT: "✓", XacmlDecision.DENY: "✗"}


@click.group(cls=Verbs)
def pdp() -> None:
    """Decide by attribute-based policies."""


# ----------------------------------------------------------------------------------------------------------------------
# `penstock pdp serve`: run the decision service over HTTP, and as a decision point on a fabric.


@option_class
class _PointOptions:
    """A decision point that answers by the same policies over a fabric and over links."""

    fabric: FabricOptions
    key_file: str | None = option("--key", metavar="FILE", help="Sign the answers over a fabric with this private key.")
    passphrase_file: str | None = passphrase_option()
    links: str | None = option(
        "--links",
        metavar="HOST:PORT",
        help="Accept requests point to point here, and send answers straight back where a request says so.",
    )
    covers: tuple[str, ...] = option(
        "--cover",
        multiple=True,
        metavar="TYPE[:ID]",
        help="Subscribe to requests about these resources (default: what the policies cover). Can be repeated.",
    )
    lifetime: float = option(
        "--lifetime",
        type=Duration(3_600, above=0.0),
        default="5s",
        show_default=True,
        metavar="DURATION",
        help="Let answers over a fabric hold for this long.",
    )
    rate: float = option(
        "--rate",
        type=click.FloatRange(1),
        default=AskRate().per_second,
        show_default=True,
        metavar="NUMBER",
        help="Answer one sender at most so often in a second.",
    )
    roles: str | None = option(
        "--roles",
        metavar="ATTRIBUTE",
        help="Declare that the policies are a union over exactly the roles in this attribute of the subject.",
    )
    labels: tuple[str, ...] = option(
        "--labels",
        multiple=True,
        metavar="MODE=ACTION[,ACTION]",
        help="Declare that the policies are Bell–LaPadula with fixed labels. MODE is read, append or write: in which "
        "way these actions access a resource. Give it for each of the three.",
    )
    no_sets: bool = option(
        "--no-sets", is_flag=True, help="Do not say for which other requests an answer holds, which discloses policies."
    )
    senders: tuple[str, ...] = option(
        "--authzen-sender",
        multiple=True,
        metavar="KEY",
        help="Answer AuthZEN events of this public key on the NATS servers too: a file, or its 32 bytes in Base64. Can "
        "be repeated.",
    )
    names: NamesOption

    def used(self) -> bool:
        """Return whether there is a decision point."""
        return self.fabric.fabric is not None or self.links is not None

    def settings(self) -> PointSettings:
        """Return what the point says about its answers. Raises `MalformedError` (`cli.usage`)."""
        patterns = [(kind, name or None) for kind, _, name in (each.partition(":") for each in self.covers)]
        if not all(kind for kind, _ in patterns):
            raise MalformedError("cli.usage", "--cover is TYPE or TYPE:ID")
        return PointSettings(
            resources(*patterns) if patterns else None,
            self._declared(),
            sets=not self.no_sets,
        )

    def _declared(self) -> RecyclingClass | None:
        """Return what the policies are declared to be. Raises `MalformedError` (`cli.usage`, `evolution.malformed`)."""
        if not self.labels:
            return None if self.roles is None else RoleRecycling(self.roles)
        if self.roles is not None:
            raise MalformedError("cli.usage", "policies are a union over roles (--roles), or compare --labels")
        modes: dict[str, frozenset[str]] = {}
        hint = "such as --labels read=view --labels append=log --labels write=edit,remove"
        for written in self.labels:
            mode, equals, actions = written.partition("=")
            if not equals or mode not in _MODES:
                known = f"`{mode[:80]}` is not a mode" if equals else f"`{written[:80]}` does not say its mode"
                message = f"--labels is MODE=ACTION, with the mode read, append or write: {known}"
                raise MalformedError("cli.usage", message, hint=did_you_mean(mode, _MODES, hint))
            modes[mode] = modes.get(mode, frozenset()) | {*filter(None, actions.split(","))}
        if modes.keys() != {*_MODES} or not all(modes.values()):
            raise MalformedError("cli.usage", "--labels says which actions read, append and write", hint=hint)
        declared = LabelRecycling(modes["read"], modes["append"], modes["write"])
        declared.verify_fields()
        return declared

    @asynccontextmanager
    async def opened(
        self, service: DecisionService, *, anyone: bool
    ) -> AsyncIterator[Callable[[Bundle], Awaitable[None]] | None]:
        """Answer over the fabric and over links, and yield what to call with another bundle.

        Raises as their parts, and `RefusedError` (`pdp.open`).
        """
        if not self.used():
            yield None
            return
        if self.key_file is None:
            raise MalformedError("cli.usage", "a decision point signs its answers", hint="give --key")
        if not self.fabric.certificates and not self.senders and not anyone:
            hint = "name the certificates of those who may ask with --credential, or give --anyone"
            raise RefusedError("pdp.open", "everybody on the fabric could ask", hint=hint)
        settings = self.settings()
        key = open_key(self.key_file, self.passphrase_file)
        owner = self.fabric.owner_of(load_names(self.names.names_file), key.principal)
        rights = self.fabric.rights(owner) if self.fabric.certificates or self.senders else None
        host, port = _address(self.links) if self.links is not None else ("", 0)
        source = BundleSource(service, service.bundle, settings)
        async with (
            self.fabric.opened() as fabric,
            AnswerLinks(key, owner, host, port) as links,
            nullcontext() if fabric is None else PolicyFeed(fabric, key, source.rests_on) as feed,
            PolicyDecisionPoint(
                fabric,
                key,
                source,
                rights=rights,
                lifetime=self.lifetime,
                rate=AskRate(self.rate, 2 * self.rate),
                links=links,
                note=DropNotes(log_line, time.monotonic),
            ) as point,
            self._events(service, key),
        ):
            said = ", ".join(filter(None, (self.fabric.fabric, links.address)))
            log_line(f"{key.principal.short} answers requests over {said}")

            async def changed(bundle: Bundle) -> None:
                nonlocal source
                newer = BundleSource(service, bundle, settings)
                try:
                    if feed is not None:
                        # Comparing large policies must not keep heartbeats waiting.
                        changes = await asyncio.to_thread(newer.changes_since, source)
                        # Caches drop what may differ before anything is answered by the new revision.
                        await feed.replace(newer.rests_on, changes)
                except PenstockError as error:
                    log_line(f"the update could not be sent, caches notice it by the next heartbeat: {error.code}")
                source = newer
                await point.replace(newer)

            yield changed

    @asynccontextmanager
    async def _events(self, service: DecisionService, key: SigningKey) -> AsyncIterator[None]:
        """Answer AuthZEN events, if the senders are named. Raises `MalformedError` (`cli.usage`, `fabric.*`)."""
        login = self.fabric.login()
        if not self.senders or login is None:
            if self.senders:
                raise MalformedError("cli.usage", "--authzen-sender needs a NATS server", hint="give --fabric")
            yield
            return
        from penstock.authority.decisions.authzen_nats import NatsEvents  # noqa: PLC0415  # an extra

        senders = [public_key(one) for one in self.senders]
        async with (
            NatsEvents(login) as events,
            EventDecisionPoint(
                events,
                key,
                lambda question, _now: service.decide(service.bundle, question),
                senders=senders,
                lifetime=self.lifetime,
                rate=AskRate(self.rate, 2 * self.rate),
            ),
        ):
            yield


@option_class
class _Serve:
    bundle: Path = argument(metavar="BUNDLE", type=click.Path(path_type=Path))
    listen: str = option(
        "--listen", default="127.0.0.1:8181", show_default=True, metavar="HOST:PORT", help="Listen here."
    )
    url: str | None = option(
        "--url", metavar="URL", help="Publish this URL in the discovery document (default: as --listen)."
    )
    tokens: Path | None = option(
        "--tokens",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Read the callers from this file: `NAME TOKEN` in each line.",
    )
    anyone: bool = option("--anyone", is_flag=True, help="Answer everybody, even if it listens beyond this machine.")
    log_file: Path | None = option(
        "--log",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the decision log to this file (default: none).",
    )
    tls_cert: Path | None = option(
        "--tls-cert",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Serve TLS with this certificate chain in PEM.",
    )
    tls_key: Path | None = option(
        "--tls-key",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Read the certificate's private key from this file in PEM.",
    )
    watch: float = option(
        "--watch",
        type=Duration(3_600),
        default="2s",
        show_default=True,
        metavar="DURATION",
        help="Look for a changed bundle this often; 0 waits for SIGHUP.",
    )
    point: _PointOptions
    trust_properties: bool = option(
        "--trust-properties",
        is_flag=True,
        help="Prefer a question's properties to those in entities.json (default: the other way round).",
    )
    output: str = output_option()


@command(
    pdp,
    example="""
penstock pdp serve examples/authzen-todo
penstock pdp serve bundle --listen 0.0.0.0:8443 --tokens callers.txt --tls-cert chain.pem --tls-key key.pem \\
  --url https://pdp.example.com --log decisions.jsonl
penstock pdp serve bundle --fabric nats://localhost:4222 --key pdp1.key --owner hospital --credential askers.certs
""",
)
def serve(options: _Serve) -> None:
    """Answer requests by the policies in BUNDLE, over HTTP, until stopped: AuthZEN 1.0 and XACML REST.

    BUNDLE is a policy, or a folder with root.xml, root.json, root.policy or root.cedar, policies that it refers to in
    any of these forms, and entities.json. What entities.json says about an entity takes precedence over what a request
    says. The bundle is reloaded when it changes, or on SIGHUP: each request is decided by one revision, and a bundle
    that cannot be read changes nothing. The service prints a line when it is ready.

    With --fabric the same policies answer requests over publish/subscribe at the same time: the service subscribes to
    what the policies' targets cover, and follows them when they change. Enforcement points believe it if --key is the
    owner's, or has a certificate (`penstock cert issue --decisions OWNER/TYPE:ID --right decide`). It answers those who
    have a certificate with the right ask in --credential; --anyone answers everybody who signs. Heartbeats and policy
    updates let enforcement points recycle answers for as long as they hold (--lifetime). With --authzen-sender it also
    answers AuthZEN requests in CloudEvents, from enforcement points that are not Penstock's.
    """
    host, port = _address(options.listen)
    if options.tokens is None and not options.anyone and not _local(host):
        hint = "name the callers with --tokens, or give --anyone"
        raise RefusedError("pdp.open", f"everybody who reaches `{host}` could ask", hint=hint)
    if (options.tls_cert is None) != (options.tls_key is None):
        raise MalformedError("cli.usage", "--tls-cert and --tls-key must be given together")
    tls = (
        None if options.tls_cert is None or options.tls_key is None else tls_context(options.tls_cert, options.tls_key)
    )
    base = f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}"
    prefix = secrets.token_hex(6)
    settings = ServiceSettings(
        url=(options.url or base).rstrip("/"),
        callers=None if options.tokens is None else read_callers(options.tokens),
        journal=None if options.log_file is None else Journal(options.log_file, f"urn:penstock:pdp:{prefix}"),
        prefix=prefix,
    )
    service = DecisionService(load(options.bundle, trust_properties=options.trust_properties), settings)

    as_json = wants_data()

    def ready(taken: int) -> None:
        if options.url is None:
            service.settings = replace(settings, url=f"{base}:{taken}")
        url, revision = f"{base}:{taken}", service.bundle.revision
        # One line, because the program that started it waits for it.
        show([json.dumps({"url": url, "revision": revision}) if as_json else f"✓ {url} decides by revision {revision}"])

    async def run() -> None:
        async with options.point.opened(service, anyone=options.anyone) as changed:
            config = ServiceConfig(host, port, options.bundle, options.watch, tls)
            await RunningService(service, config, log_line, changed).run(ready)

    asyncio.run(run())


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise MalformedError("cli.usage", f"`{text[:80]}` is not HOST:PORT")
    return host.strip("[]"), int(port)


def _local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# ----------------------------------------------------------------------------------------------------------------------
# `penstock pdp evaluate`: decide a request in a file.


@option_class
class _Evaluate:
    request_file: str = argument(metavar="REQUEST", default="-")
    policy_file: str = option(
        "--policy", required=True, metavar="FILE", help="Decide by this policy or policy set, in XML or text."
    )
    referred: tuple[str, ...] = option(
        "--refer", multiple=True, metavar="FILE", help="Read a policy that it refers to. Can be repeated."
    )
    at: AtOption
    output: str = output_option(XML)


@command(
    pdp,
    example="""
penstock pdp evaluate request.xml --policy records.xml
penstock pdp evaluate request.json --policy root.xml --refer records.xml --refer billing.xml -o json
""",
)
def evaluate(session: CommandSession, options: _Evaluate) -> CommandAnswer:
    """Decide the REQUEST in a file, in XML, in the JSON profile or as AuthZEN has it; - reads standard input.

    The exit status is 0 if everything is permitted, and 1 otherwise. With -o xml or json the answer is an XACML
    response. Errors in a policy are Indeterminate, and are shown with their reason.
    """
    root = read_root(options.policy_file)
    others = [read_root(file) for file in options.referred]
    check_policies([root], others)
    known = Repository(others)
    request = read_request_file(options.request_file)
    response = decide(CompiledPolicy(root).evaluate, request, options.at.moment(session), known)
    denied = [result for result in response.results if result.decision is not XacmlDecision.PERMIT]
    error = RefusedError("pdp.not-permitted", f"the answer is {denied[0].decision.plain}") if denied else None
    if options.output == XML:
        return CommandAnswer({}, xml_requests.write_response(response).decode().split("\n"), error)
    data = write_response(response)
    shown = (line for result in response.results for line in _show(result))
    return CommandAnswer(data if isinstance(data, dict) else {}, shown, error)


def _show(result: Result) -> Iterator[str]:
    reason = f": {result.status.message}" if result.status.message else ""
    yield f"{_MARKS.get(result.decision, '?')} {result.decision.value}{reason}"
    for one in result.status.missing:
        yield f"  missing: {one.id} ({one.of}) of {one.category}"
    for word, duties in (("obligation", result.obligations), ("advice", result.advice)):
        for duty in duties:
            yield f"  {word} {duty.id}"
            yield from (f"    {assigned.id} = {assigned.of.write(assigned.value)}" for assigned in duty.assigned)
    for policy in result.policies:
        yield f"  {'policy set' if policy.is_set else 'policy'} {policy.id} {policy.version}"


# ----------------------------------------------------------------------------------------------------------------------
# `penstock policy`. Most of its verbs are in `files`, `analysis` and `explanation`.


@click.group(cls=Verbs)
def policy() -> None:
    """Check, convert, test and analyse attribute-based policies."""


for _command in (analyse, diff, explain_decision, residual, check, fmt, convert, run_tests, sql, acl):
    policy.add_command(_command)


# ----------------------------------------------------------------------------------------------------------------------
# `penstock policy combine`: combine decisions by an algorithm or a decision tuple.


#: the modes of Bell–LaPadula that `--labels` is about
_MODES: Final = ("read", "append", "write")
_DECISIONS: Final[Mapping[str, XacmlDecision]] = {
    "P": XacmlDecision.PERMIT,
    "D": XacmlDecision.DENY,
    "NA": XacmlDecision.NOT_APPLICABLE,
    "IN_P": XacmlDecision.INDETERMINATE_P,
    "IN_D": XacmlDecision.INDETERMINATE_D,
    "IN_DP": XacmlDecision.INDETERMINATE_DP,
    "IN": XacmlDecision.INDETERMINATE_DP,
    **{one.plain: one for one in XacmlDecision},
}


@dataclass(frozen=True, slots=True)
class _Said:
    """A decision, and the priority of its decision point."""

    decision: XacmlDecision
    priority: int

    @classmethod
    def of(cls, text: str) -> "_Said":
        letter, sign, priority = text.partition("@")
        if letter not in _DECISIONS or (sign and not priority.removeprefix("-").isdecimal()):
            hint = "write P, D, NA, IN, IN_P, IN_D or IN_DP, and a priority as P@2"
            raise MalformedError("combining.decision", f"`{text[:80]}` is not a decision", hint=hint)
        return cls(_DECISIONS[letter], int(priority or 0))


def _responses(files: tuple[str, ...]) -> tuple[list[Response], list[int]]:
    """Read responses, each with the priority after `@` if there is one."""
    responses, priorities = [], []
    for text in files:
        file, _, priority = text.rpartition("@")
        if not file or not priority.removeprefix("-").isdecimal():
            file, priority = text, "0"
        data = read_bytes(file)
        with within(file):
            read = xml_requests.read_response if data.lstrip().startswith(b"<") else json_requests.read_response
            responses.append(read(data))
        priorities.append(int(priority))
    return responses, priorities


@option_class
class _Combine:
    decisions: tuple[str, ...] = argument(nargs=-1, metavar="[DECISION]...")
    name: str | None = option(
        "--by", metavar="ALGORITHM", help="Combine by this algorithm: its id, or the last part of it."
    )
    elements: tuple[str, ...] = option(
        "--element",
        multiple=True,
        metavar="NAME=TEXT",
        help="Set an element of a decision tuple: P, D, NA, IN, or IN_P, IN_D and IN_DP.",
    )
    responses: tuple[str, ...] = option(
        "--response", multiple=True, metavar="FILE[@N]", help="Read an XACML response, in XML or JSON. Can be repeated."
    )
    output: str = output_option()


@command(
    policy,
    example="""
penstock policy combine --by deny-overrides P NA D
penstock policy combine --by deny-overrides P@2 D@1
penstock policy combine --element 'P=#P > 1' --element 'D=#P < 1 and #D > 0' P P D
penstock policy combine --by permit-overrides --response house.xml@2 --response guests.json@1
""",
)
def combine(options: _Combine) -> CommandAnswer:
    """Combine DECISIONs, each P, D, NA or IN, with a priority after `@`.

    Whole responses of decision points are given with --response, and are combined with their obligations. Of the
    applicable ones, those with the highest priority count. Elements of a decision tuple are expressions over sequences,
    such as `NA* P .*`, or constraints on counts, such as `#P > 1`. A tuple in which two elements accept the same
    sequence is refused. If no element accepts some sequence, the output says so. The printed id can be used wherever a
    policy names an algorithm.
    """
    if (options.name is None) is not bool(options.elements):
        raise click.UsageError("give one of --by and --element")
    if options.decisions and options.responses:
        raise click.UsageError("give decisions or --response, not both")
    chosen = _tuple(options.elements).id if options.name is None else POLICY_COMBINING.get(options.name, options.name)
    found = _combined(chosen, options.decisions, options.responses)
    gap = DecisionTuple.of_id(chosen).gap() if chosen.startswith(PREFIX) else None
    data = {
        "algorithm": chosen,
        "decision": found.results[0].decision.value if len(found.results) == 1 else None,
        "gap": None if gap is None else list(gap.witness),
        **({"response": json_written.write_response(found)} if options.responses else {}),
    }

    def shown() -> Iterator[str]:
        if gap is not None:
            yield f"! no element accepts: {gap}; that is Indeterminate"
        for result in found.results:
            yield result.decision.value
            for word, duties in (("obligation", result.obligations), ("advice", result.advice)):
                yield from (f"  {word} {duty.id}" for duty in duties)
        if not found.results:
            yield chosen

    return CommandAnswer(data, shown())


def _combined(name: str, decisions: tuple[str, ...], files: tuple[str, ...]) -> Response:
    if files:
        return combined_responses(name, *_responses(files))
    said = [_Said.of(one) for one in decisions]
    outcomes, priorities = [PolicyOutcome(one.decision) for one in said], [one.priority for one in said]
    found = combined(name, outcomes, priorities or None)
    return Response([Result(found.decision)] if said else [])


def _tuple(elements: tuple[str, ...]) -> DecisionTuple:
    pairs = [one.partition("=") for one in elements]
    if any(not sign for _, sign, _ in pairs) or len({name.strip() for name, _, _ in pairs}) != len(pairs):
        raise click.UsageError("an element is NAME=TEXT, each name once: --element 'P=#P > 1'")
    return DecisionTuple.of({name.strip(): text for name, _, text in pairs})
