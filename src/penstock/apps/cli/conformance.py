"""`penstock conformance`: how Penstock does on the test suites of standards."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from penstock.apps.cli import paint
from penstock.apps.cli.conformance_xacml import DEFECTIVE, Ran, run_suite
from penstock.apps.cli.groups import Verbs, example
from penstock.apps.cli.options import JSON, output_option
from penstock.apps.cli.session import Session, say, say_json
from penstock.errors import FailedError, RefusedError

_OUTCOMES: Final = ("passed", "failed", "defective")


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
    failed = [one for one in ran if one.outcome == "failed"]
    defective = {one.case: DEFECTIVE[one.case] for one in ran if one.outcome == "defective"}
    passed = len(ran) - len(failed) - len(defective)
    if output == JSON:
        told = [one.as_dict() for one in failed]
        say_json({"passed": passed, "failed": told, "defective": defective, "groups": _groups(ran)})
    else:
        rows = [(group, *(str(counts[name]) for name in _OUTCOMES)) for group, counts in _groups(ran).items()]
        paint.grid(("group", *_OUTCOMES), rows)
        for one in failed:
            say(f"{one.case}: {'; '.join(one.differences)}")
        for case, reason in defective.items():
            say(f"{case} is defective and was not run: {reason}")
        say(f"{passed} of {len(ran)} cases passed, {len(failed)} failed, {len(defective)} defective")
    if failed:
        raise RefusedError("conformance.failed", f"{len(failed)} of {len(ran)} cases failed")


def _groups(ran: list[Ran]) -> Mapping[str, Mapping[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for one in ran:
        counts.setdefault(one.group, Counter(dict.fromkeys(_OUTCOMES, 0)))[one.outcome] += 1
    return counts
