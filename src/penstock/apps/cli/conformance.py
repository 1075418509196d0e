"""`penstock conformance`: run the test suites of standards."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.decision_options import public_key
from penstock.apps.cli.shared.nats_options import nats_login, nats_login_option
from penstock.apps.cli.shared.options import Duration, KeyOptions
from penstock.apps.cli.shared.session import CommandSession, Verbs
from penstock.apps.cli.shared.terminal import Shown, grid_table
from penstock.authority.decisions.authzen_conformance import CheckResult, DecisionPointSuite, EnforcementPointSuite
from penstock.crypto import PublicKey, SigningKey
from penstock.errors import FailedError, MalformedError, PenstockError, RefusedError
from penstock.fabric.nats_login import NatsLogin
from penstock.policy.combining import POLICY_COMBINING
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.decide import decide
from penstock.policy.engine.evaluate import status_of
from penstock.policy.engine.lookup import Repository
from penstock.policy.language.datatypes import XPATH, Value, data_type
from penstock.policy.language.policies import Designator, PolicyReference, PolicySet, Root
from penstock.policy.language.requests import Request
from penstock.policy.language.results import Obligation, Response, Result, XacmlDecision
from penstock.policy.syntax.xml.policies import read_policy
from penstock.policy.syntax.xml.requests import read_request, read_response

# ----------------------------------------------------------------------------------------------------------------------
# The conformance suite of XACML 3.0: its cases, what each needs, and whether the answer is the expected one.


#: cases that an engine which follows the standards cannot pass, and why
DEFECTIVE: Final = {
    "IIA023": "a time zone of -14:30, which XML Schema does not have, in the request and in the expected response",
}
_ONLY_ONE: Final = POLICY_COMBINING["only-one-applicable"]
_REQUEST: Final = "Request.xml"
_CHILDREN: Final = ("urn:root:child1", "urn:root:child2")
_ABOVE: Final = {one: ["urn:root"] for one in _CHILDREN} | {
    f"{one}:descendant{number}": [one] for one in _CHILDREN for number in (1, 2)
}


@dataclass(frozen=True, slots=True)
class Ran:
    """A case, and how its response differs from the expected one."""

    case: str
    differences: tuple[str, ...]
    defect: bool = False

    @property
    def outcome(self) -> str:
        """The outcome; a case that was not run has not passed."""
        return "defective" if self.defect else "failed" if self.differences else "passed"

    @property
    def group(self) -> str:
        """The group of the case: the first part of its name."""
        found = re.match(r"[A-Z]+", self.case)
        return found[0] if found else self.case

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {"case": self.case, "differences": list(self.differences), "defective": self.defect}


def run_suite(folder: Path, now: datetime) -> Iterator[Ran]:
    """Run all cases in a folder and its subfolders."""
    for request in sorted(folder.rglob(f"*{_REQUEST}")):
        case = request.name.removesuffix(_REQUEST)
        if case in DEFECTIVE:
            yield Ran(case, (), defect=True)
            continue
        try:
            expected = read_response(request.with_name(f"{case}Response.xml").read_bytes())
            found = _answer(request.parent, case, request.read_bytes(), now)
        except (PenstockError, OSError) as error:
            yield Ran(case, (f"cannot be run: {error}",))
            continue
        yield Ran(case, tuple(_differences(found, expected)))


def _answer(folder: Path, case: str, request: bytes, now: datetime) -> Response:
    try:
        asked = read_request(request)
        sources = _Sources(folder, case)
        return decide(CompiledPolicy(_root(folder, case)).evaluate, asked, now, sources)
    except PenstockError as error:
        return Response([Result(XacmlDecision.INDETERMINATE_DP, status_of(error))])


def _root(folder: Path, case: str) -> Root:
    path = folder / f"{case}Policy.xml"
    if path.exists():
        return read_policy(path.read_bytes())
    roots = [read_policy((folder / name).read_bytes()) for name in _listed(folder, case, "rootPolicies")]
    # Of several root policies, one may be applicable.
    return PolicySet("urn:penstock:roots", "1.0", _ONLY_ONE, tuple(roots))


def _listed(folder: Path, case: str, name: str) -> list[str]:
    path = folder / f"{case}Repository.properties"
    text = path.read_text("utf-8") if path.exists() else ""
    found = re.search(rf"^xacml\.{name}=(.*)$", text, re.MULTILINE)
    return [name.strip() for name in found[1].split(",")] if found else []


class _Sources(Repository):
    """The sources that the notes of the suite describe: policies, one attribute, and a small hierarchy."""

    def __init__(self, folder: Path, case: str) -> None:
        self._broken: dict[str, PenstockError] = {}
        policies = []
        for name in _listed(folder, case, "referencedPolicies"):
            data = (folder / name).read_bytes()
            try:
                policies.append(read_policy(data))
            except PenstockError as error:
                found = re.search(rb'Policy(?:Set)?Id="([^"]*)"', data)
                self._broken[found[1].decode() if found else name] = error
        super().__init__(policies, _ABOVE)
        path = folder / "PIP.txt"
        self._attributes = [line.split("|") for line in path.read_text("utf-8").split()] if path.exists() else []

    def policy(self, reference: PolicyReference) -> Root:
        if reference.id in self._broken:
            raise self._broken[reference.id]
        return super().policy(reference)

    def attribute(self, wanted: Designator, _request: Request, /) -> Sequence[Value]:
        return [
            data_type(of_type).read(value)
            for category, name, of_type, value in self._attributes
            if (category, name) == (wanted.category, wanted.id) and data_type(of_type) is wanted.of
        ]


def _differences(found: Response, expected: Response) -> Iterator[str]:
    if len(found.results) != len(expected.results):
        yield f"{len(found.results)} results, expected {len(expected.results)}"
        return
    for result, wanted in zip(found.results, expected.results, strict=True):
        here, there = _facts(result), _facts(wanted)
        for name, value in here.items():
            if value != there[name]:
                yield f"{name} is {value}, expected {there[name]}"


def _facts(result: Result) -> dict[str, object]:
    return {
        "decision": result.decision.plain,
        "status": result.status.code,
        "obligations": _duties(result.obligations),
        "advice": _duties(result.advice),
        # A path may be written in many ways.
        "attributes": sorted(
            (category.category, attribute.id, tuple(of_type.write(value) for of_type, value in attribute.values))
            for category in result.attributes
            for attribute in category.attributes
            if all(of_type is not XPATH for of_type, _ in attribute.values)
        ),
        "policies": sorted((policy.id, policy.version, policy.is_set) for policy in result.policies),
    }


def _duties(duties: Sequence[Obligation]) -> list[object]:
    return [
        (duty.id, sorted((one.id, one.of.id, one.of.write(one.value), one.category or "") for one in duty.assigned))
        for duty in duties
    ]


# ----------------------------------------------------------------------------------------------------------------------
# The commands.


_OUTCOMES: Final = ("passed", "failed", "defective")


@click.group(cls=Verbs)
def conformance() -> None:
    """Run the test suites of standards."""


@option_class
class _Xacml:
    folder: str = argument(metavar="DIR")
    output: str = output_option()


@command(conformance, example="penstock conformance xacml xacml-3.0")
def xacml(session: CommandSession, options: _Xacml) -> CommandAnswer:
    """Run the cases of the XACML 3.0 suite in DIR, and show which passed.

    A case is a policy, a request and the expected response: `IDPolicy.xml`, `IDRequest.xml`, `IDResponse.xml`. The
    decision, the status code, obligations and advice with their attributes, the attributes that the request wants back,
    and the applicable policies are compared. Cases that are known to be defective are listed with the reason.
    """
    if not Path(options.folder).is_dir():
        raise FailedError(
            "file.unreadable", f"`{options.folder}` is not a folder", hint="name the folder that has the cases"
        )
    ran = [*run_suite(Path(options.folder), session.now)]
    failed = [one for one in ran if one.outcome == "failed"]
    defective = {one.case: DEFECTIVE[one.case] for one in ran if one.outcome == "defective"}
    passed = len(ran) - len(failed) - len(defective)
    rows = [(group, *(str(counts[name]) for name in _OUTCOMES)) for group, counts in _groups(ran).items()]
    shown: list[Shown] = [
        grid_table(("group", *_OUTCOMES), rows),
        *(f"{one.case}: {'; '.join(one.differences)}" for one in failed),
        *(f"{case} is defective and was not run: {reason}" for case, reason in defective.items()),
        f"{passed} of {len(ran)} cases passed, {len(failed)} failed, {len(defective)} defective",
    ]
    failures = [one.as_dict() for one in failed]
    data = {"passed": passed, "failed": failures, "defective": defective, "groups": _groups(ran)}
    error = RefusedError("conformance.failed", f"{len(failed)} of {len(ran)} cases failed") if failed else None
    return CommandAnswer(data, shown, error)


def _groups(ran: list[Ran]) -> Mapping[str, Mapping[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for one in ran:
        counts.setdefault(one.group, Counter(dict.fromkeys(_OUTCOMES, 0)))[one.outcome] += 1
    return counts


@option_class
class _AuthzenPubsub:
    pdp: str | None = option("--pdp", metavar="URL", help="Check the decision point behind this NATS server.")
    pep: str | None = option("--pep", metavar="URL", help="Check the enforcement point behind this NATS server.")
    point: str = option(
        "--point-key",
        metavar="KEY",
        required=True,
        help="Expect events signed by this public key: a file, or its 32 bytes in Base64.",
    )
    key: KeyOptions
    wait: float = option(
        "--wait", type=Duration(60, above=0), default="1s", help="Wait so long for what must not come (default: 1s)."
    )
    timeout: float = option(
        "--timeout", type=Duration(600, above=0), default="10s", help="Wait so long for what must come (default: 10s)."
    )
    login_files: tuple[str, ...] = nats_login_option()
    output: str = output_option()


@command(
    conformance,
    example="penstock conformance authzen-pubsub --pdp nats://localhost:4222 --key me.key --point-key pdp.pub",
)
def authzen_pubsub(_session: CommandSession, options: _AuthzenPubsub) -> CommandAnswer:
    """Check a decision point (--pdp) or an enforcement point (--pep) that speaks AuthZEN over NATS.

    The point must trust the key of --key. A decision point must permit `read` on resources of type `conformance`
    exactly if their id is `permit`. An enforcement point needs a small test driver, which asks what the suite wants to
    be asked. docs/reference/authzen-over-pubsub.md has the rules; each check names the section that it checks.
    """
    if (options.pdp is None) is (options.pep is None):
        raise MalformedError("cli.usage", "exactly one of --pdp and --pep is required", hint="name one NATS server")
    name, url = ("--pep", options.pep) if options.pdp is None else ("--pdp", options.pdp)
    login = nats_login(name, [str(url)], options.login_files)
    peer, key = public_key(options.point), options.key.open()
    results = asyncio.run(_check_point(login, key, peer, options))
    failed = [one for one in results if one.problem is not None]
    shown: list[Shown] = [
        grid_table(
            ("check", "section", "", "what"),
            [(one.check, one.section, "✗" if one.problem else "✓", one.title) for one in results],
        ),
        *(f"{one.check}: {one.problem}" for one in failed),
        f"{len(results) - len(failed)} of {len(results)} checks passed",
    ]
    data = {"passed": len(results) - len(failed), "checks": [one.as_dict() for one in results]}
    error = RefusedError("conformance.failed", f"{len(failed)} of {len(results)} checks failed") if failed else None
    return CommandAnswer(data, shown, error)


async def _check_point(
    login: NatsLogin, key: SigningKey, peer: PublicKey, options: _AuthzenPubsub
) -> list[CheckResult]:
    # It needs nats-py, an extra that other suites do not need.
    from penstock.authority.decisions.authzen_nats import NatsEvents  # noqa: PLC0415

    async with NatsEvents(login, timeout=options.timeout) as transport:
        suite = (
            EnforcementPointSuite(transport, key, peer, make_ask=transport.make_ask)
            if options.pdp is None
            else DecisionPointSuite(transport, key, peer)
        )
        suite.patience, suite.silence = options.timeout, options.wait
        return await suite.results()
