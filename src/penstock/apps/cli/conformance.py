"""`penstock conformance`: how Penstock does on the test suites of standards."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import click

from penstock.apps.cli import paint
from penstock.apps.cli.conformance_xacml import DEFECTIVE, Ran, run_suite
from penstock.apps.cli.groups import Verbs, example
from penstock.apps.cli.options import JSON, output_option
from penstock.apps.cli.session import Session, say, say_json
from penstock.errors import FailedError, RefusedError


@click.group(cls=Verbs)
def conformance() -> None:
    """Run the test suites of standards."""


@conformance.command()
@click.argument("folder", metavar="DIR")
@output_option()
@click.pass_obj
@example("penstock conformance xacml xacml-3.0")
def xacml(session: Session, /, *, folder: str, output: str) -> None:
    """Run the cases of the XACML 3.0 suite in DIR, and show which passed.

    A case is a policy, a request and the response that is expected: `IDPolicy.xml`, `IDRequest.xml`, `IDResponse.xml`.
    Compared are the decision, the code of the status, obligations and advice with their attributes, what the request
    wants back, and the policies that were applicable. Cases that are known to be defective are listed with the reason.
    """
    if not Path(folder).is_dir():
        raise FailedError("file.unreadable", f"`{folder}` is no folder", hint="name the folder that has the cases")
    ran = [*run_suite(Path(folder), session.now)]
    failed = [one for one in ran if one.differences]
    if output == JSON:
        say_json(
            {"passed": len(ran) - len(failed), "failed": [one.as_dict() for one in failed], "groups": _groups(ran)}
        )
    else:
        rows = [(group, str(counts["passed"]), str(counts["failed"])) for group, counts in _groups(ran).items()]
        paint.grid(("group", "passed", "failed"), rows)
        for one in failed:
            say(f"{one.case}: {'; '.join(one.differences)}")
        for one in ran:
            if one.defect:
                say(f"{one.case} is defective: {DEFECTIVE[one.case]}")
        say(f"{len(ran) - len(failed)} of {len(ran)} cases passed")
    if failed:
        raise RefusedError("conformance.failed", f"{len(failed)} of {len(ran)} cases failed")


def _groups(ran: list[Ran]) -> Mapping[str, Mapping[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for one in ran:
        counts.setdefault(one.group, Counter(passed=0, failed=0))["failed" if one.differences else "passed"] += 1
    return counts
