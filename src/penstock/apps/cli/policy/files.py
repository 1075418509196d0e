"""`penstock policy check|fmt|convert|test`: policy files in XML, JSON, the text form and Cedar, and their tests."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.files import STDIN, read_bytes, within, write_bytes
from penstock.apps.cli.shared.options import AtOption, OutputFile
from penstock.apps.cli.shared.session import CommandSession, Warned, warn
from penstock.apps.cli.shared.terminal import show
from penstock.apps.http.entities import Entities
from penstock.authority.decisions.questions import facts_of, read_question
from penstock.errors import MalformedError, RefusedError
from penstock.policy.engine.cases import failures, read_cases
from penstock.policy.engine.compiler import CompiledPolicy
from penstock.policy.engine.lookup import Repository, check_policies
from penstock.policy.language.policies import Designator, PolicySet, Root, designators
from penstock.policy.language.requests import Request
from penstock.policy.syntax import forms
from penstock.policy.syntax.forms import PolicyForm, form_of, read_policies, text_of
from penstock.policy.syntax.json import requests as json_requests
from penstock.policy.syntax.json.policies import write_json_policy
from penstock.policy.syntax.text.lint import Finding, lint, lint_document
from penstock.policy.syntax.text.policies import Document, read_document
from penstock.policy.syntax.text.policy_writer import lay_out, write_text
from penstock.policy.syntax.xml import requests as xml_requests
from penstock.policy.syntax.xml.policies import Repair, read_leniently, write_policy

# ----------------------------------------------------------------------------------------------------------------------
# Requests in files: XACML in XML or JSON, or AuthZEN.


def read_request_file(file: str, entities: Entities | None = None) -> Request:
    """Read a request in XML, in the JSON profile, or as AuthZEN's evaluation API has it, with the known entities.

    Raises `MalformedError` (`xacml.request`, `pdp.request` and others).
    """
    data = read_bytes(file)
    with within(file):
        if data.lstrip()[:1] == b"{":
            found = json_requests.read_json(data)
            if isinstance(found, dict) and "Request" not in found and "subject" in found:
                return Request.of_facts(facts_of(read_question(found), entities or Entities()))
            return json_requests.read_request(data)
        if data.lstrip()[:1] == b"<":
            return xml_requests.read_request(data)
        raise MalformedError("xacml.request", "a request must be XML or JSON")


# ----------------------------------------------------------------------------------------------------------------------
# The commands.


_WRITERS: Final[Mapping[str, Callable[[Root], bytes]]] = {
    PolicyForm.XML: write_policy,
    PolicyForm.TEXT: lambda root: write_text(root).encode(),
    PolicyForm.JSON: write_json_policy,
}


def lenient_option() -> Any:
    """Declare `--lenient`."""
    return option(
        "--lenient",
        is_flag=True,
        help="Guess what the XML lacks, and report each guess: categories, targets, versions.",
    )


def read_root(file: str, *, lenient: bool = False) -> Root:
    """Read a file of one policy or policy set, in XML, JSON, the text form or Cedar; guesses are reported."""
    return _read(file, lenient=lenient)[0]


def read_named(file: str, *, lenient: bool = False) -> tuple[Root, Mapping[str, Designator]]:
    """Read a file as `read_root`, with the names that a text has for attributes."""
    root, form = _read(file, lenient=lenient)
    return root, read_policies(read_bytes(file)).attributes if form is PolicyForm.TEXT and file != STDIN else {}


def _read(file: str, *, lenient: bool) -> tuple[Root, PolicyForm]:
    """Read a file, and return its form too."""
    data = read_bytes(file)
    form = form_of(data)
    with within(file):
        if not lenient or form is not PolicyForm.XML:
            return forms.read_root(data), form
        root, repairs = read_leniently(data)
    warn(*_told(file, repairs))
    return root, form


def _told(file: str, repairs: Sequence[Repair]) -> Iterator[Warned]:
    """Yield a warning for each kind of repair."""
    lines: dict[tuple[str, str], list[int]] = {}
    for one in repairs:
        lines.setdefault((one.element, one.message), []).append(one.line)
    for (element, message), those in lines.items():
        shown = ", ".join(map(str, those[:3])) + (f" and {len(those) - 3} more" if len(those) > 3 else "")
        yield Warned("xacml.repaired", f"{file}: `{element}`: {message} (line {shown})")


def _document(file: str) -> Document:
    data = read_bytes(file)
    with within(file):
        return read_policies(data)


def _findings(document: Document) -> list[Finding]:
    if document.text:
        return [*lint_document(document)]
    return [finding for root in document.policies for finding in lint(root)]


@option_class
class _Check:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    output: str = output_option()


@command(example="penstock policy check records.xml billing.policy")
def check(options: _Check) -> CommandAnswer:
    """Check the policies in each FILE: elements, types of arguments, algorithms, variables and versions.

    The files are checked together: no two policies have the same id and version, and all references are in one of the
    files. The first error is shown with its line, and with its element or its column. Suspicious parts are reported
    too: duplicate ids, rules that are never reached, unused variables and attributes.
    """
    found = [(file, document, _findings(document)) for file in options.files for document in [_document(file)]]
    check_policies([], [root for _, document, _ in found for root in document.policies])
    policies = [
        {"file": file, "id": root.id, "version": root.version} for file, one, _ in found for root in one.policies
    ]
    findings = [{"file": file, **asdict(finding)} for file, _, those in found for finding in those]

    def shown() -> Iterator[str]:
        for file, document, those in found:
            for root in document.policies:
                yield f"✓ {file}: {'policy set' if isinstance(root, PolicySet) else 'policy'} {root.id} {root.version}"
            for finding in those:
                place = "" if finding.line is None else f"{finding.line}:{finding.column}:"
                yield f"! {file}:{place} {finding.message} ({finding.code})"

    return CommandAnswer({"policies": policies, "findings": findings}, shown())


@option_class
class _Fmt:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    only_check: bool = option("--check", is_flag=True, help="Write nothing, and exit with 1 if a file would change.")


@command(
    example="""
penstock policy fmt records.policy
penstock policy fmt --check policies/*.policy
"""
)
def fmt(options: _Fmt) -> None:
    """Format policies in the text form and replace each FILE; - formats standard input to standard output.

    Line breaks and comments stay as they are; spaces and indentation are normalised. A file that cannot be read as
    policies is not changed.
    """
    changed = []
    for file in options.files:
        data = read_bytes(file)
        with within(file):
            text = text_of(data)
            read_document(text)
            laid = lay_out(text)
        if file == STDIN and not options.only_check:
            show(laid.removesuffix("\n").split("\n"))
        elif laid.encode() != data:
            changed.append(file)
            if not options.only_check:
                write_bytes(file, laid.encode(), overwrite=True)
                show([f"✓ {file}"])
    if options.only_check and changed:
        raise RefusedError("policy.layout", f"{', '.join(changed)}: not laid out", hint="run `penstock policy fmt`")


@option_class
class _Convert:
    file: str = argument(metavar="FILE", default="-")
    form: str | None = option(
        "--to",
        type=click.Choice([str(one) for one in _WRITERS]),
        help="Write this form (default: XML, or text if the input is XML).",
    )
    lenient: bool = lenient_option()
    destination: OutputFile


@command(
    example="""
penstock policy convert records.policy --out records.xml
penstock policy convert records.xml --to text
penstock policy convert photos.cedar --to text
"""
)
def convert(options: _Convert) -> None:
    """Convert the policy in FILE to another form: XML of XACML 3.0, the text form, or JSON.

    Policies in Cedar are compiled to one XACML policy that decides the same. What XACML cannot say, and policies that
    can err, are refused with their line.
    """
    root, known = _read(options.file, lenient=options.lenient)
    with within(options.file):
        written = _WRITERS[options.form or (PolicyForm.TEXT if known is PolicyForm.XML else PolicyForm.XML)](root)
    if options.destination.dry_run:
        show([f"✓ {len(written)} bytes"])
    elif options.destination.out is None:
        show(written.decode().removesuffix("\n").split("\n"))
    else:
        write_bytes(options.destination.out, written, overwrite=options.destination.overwrite)


@dataclass(frozen=True, slots=True)
class _Ran:
    """A case, and how its result differs from the expected one."""

    file: str
    name: str
    failed: tuple[str, ...]


@option_class
class _RunTests:
    files: tuple[str, ...] = argument(nargs=-1, required=True, metavar="FILE...")
    at: AtOption
    output: str = output_option()


@command(name="test", example="penstock policy test records.tests.yaml")
def run_tests(session: CommandSession, options: _RunTests) -> CommandAnswer:
    """Run the test cases in each FILE, which are requests in YAML with the expected decisions.

    The file names its policy, and those that it refers to, relative to its own folder. The exit status is 1 if a
    decision, an obligation or an advice differs.
    """
    now = options.at.moment(session)
    ran = [one for file in options.files for one in _run(file, now)]
    failed = [one for one in ran if one.failed]
    shown = (
        line
        for one in ran
        for line in (
            f"{'✗' if one.failed else '✓'} {one.file}: {one.name}",
            *(f"    {reason}" for reason in one.failed),
        )
    )
    data = {"passed": len(ran) - len(failed), "failed": len(failed), "cases": [asdict(one) for one in ran]}
    error = RefusedError("policy.tests", f"{len(failed)} of {len(ran)} tests failed") if failed else None
    return CommandAnswer(data, shown, error)


def _run(file: str, now: datetime) -> list[_Ran]:
    data = read_bytes(file)
    with within(file):
        cases = read_cases(text_of(data))
    folder = Path() if file == STDIN else Path(file).parent
    document = _document(str(folder / cases.policy))
    referred = [root for name in cases.refer for root in _document(str(folder / name)).policies]
    if not document.policies:
        raise MalformedError("xacml.case", f"`{cases.policy}` holds no policy")
    others = [*document.policies[1:], *referred]
    check_policies(document.policies[:1], others)
    known = Repository(others)
    evaluator = CompiledPolicy(document.policies[0]).evaluate
    with within(file):
        found = [*cases.read(document.attributes, designators([*document.policies, *referred]))]
    return [_Ran(file, one.name, tuple(failures(one, evaluator, now, known))) for one in found]
