"""`penstock pipeline audit-components`: audit what log points of a domain of components have logged."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from penstock.apps.cli.pipeline.options import SparkOptions
from penstock.apps.cli.pipeline.output import show_table
from penstock.apps.cli.pipeline.spark_session import session as spark_session
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.describe import counted
from penstock.apps.cli.shared.files import write_bytes
from penstock.apps.cli.shared.options import Duration
from penstock.apps.cli.shared.session import CommandSession
from penstock.apps.cli.shared.terminal import Shown
from penstock.authority.components.plans.domain_plan import load_domain_plan
from penstock.authority.decisions.messages import AccessAnswer, AnswerEffect, PolicyRevision
from penstock.authority.decisions.modes import FIRST, AnswerMode, of_highest_priority
from penstock.errors import MalformedError, RefusedError
from penstock.model.instants import parse_instant
from penstock.model.principals import Petnames, Principal
from penstock.pipeline.component_audit import CombineAnswers, ComponentAudit, GivenAnswer, audit_components
from penstock.pipeline.outputs import reading

_YEAR: Final = 366 * 86_400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LATER: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class _LoggedAnswer:
    """An answer that a log point has logged; it has verified it."""

    value: AccessAnswer
    replier: str
    home: str


@dataclass(frozen=True, slots=True)
class RoleModes:
    """How enforcement roles combine answers: modes and priorities by role. Roles that it does not have take the first.

    It is called where Spark runs, so it is a value.
    """

    modes: Mapping[str, tuple[AnswerMode, Mapping[str, int]]]

    def __call__(self, role: str, answers: Sequence[GivenAnswer]) -> tuple[str | None, list[str]]:
        """Return the effect that the answers give, and who gave those that counted."""
        mode, priorities = self.modes.get(role, (FIRST, {}))
        found = of_highest_priority(map(_answer, answers), lambda one: priorities.get(one.home, 0))
        if not found or (mode.wait is None and len(found) < (mode.answers or 1)):
            return None, []
        enough = found if mode.answers is None else found[: mode.answers]
        try:
            decision = mode.combine(enough)
        except RefusedError:
            return None, []
        return str(decision.effect), sorted({one.replier for one in enough if one in decision.answers})


def _answer(given: GivenAnswer) -> _LoggedAnswer:
    rests: Any = given["rests"] or ()
    heard = _EPOCH + timedelta(microseconds=int(str(given["heard"])))
    answer = AccessAnswer(
        b"",
        AnswerEffect(str(given["effect"])),
        tuple(PolicyRevision(one["id"], one["revision"], parse_instant(one["changed"])) for one in rests),
        Principal.parse(str(given["principal"])),
        heard,
        heard + _LATER,
        str(given["status"] or "") or None,
    )
    return _LoggedAnswer(answer, str(given["replier"]), str(given["home"]))


@option_class
class _AuditComponents:
    source: str = argument(metavar="LOG")
    plan_file: str | None = option(
        "--plan",
        metavar="FILE",
        help="Combine answers as the enforcement roles in this domain plan do (default: the first answer counts).",
    )
    last: float | None = option(
        "--last",
        type=Duration(_YEAR, above=0.0),
        metavar="DURATION",
        help="Report only the time from this long ago until now (default: all).",
    )
    since: str | None = option("--since", metavar="TIME", help="Report only samples from this time on (default: all).")
    until: str | None = option("--until", metavar="TIME", help="Report only samples before this time (default: all).")
    limit: int = option(
        "--limit",
        type=click.IntRange(1, 1_000),
        default=20,
        show_default=True,
        help="Show at most this many rows of a table.",
    )
    refusals: str | None = option(
        "--refusals",
        metavar="FILE",
        help="Write to this file how often each subject was refused, for a PIP's source. It is replaced.",
    )
    spark: SparkOptions
    output: str = output_option()


@command(
    example="""
penstock pipeline audit-components log --plan bank.toml
penstock pipeline audit-components log --plan bank.toml --last 1h --refusals refusals.json
"""
)
def audit(session: CommandSession, options: _AuditComponents) -> CommandAnswer:
    """Report who asked components what, whose answer counted, and what was missing.

    LOG is the folder of a PLP, or one of its files. The report also has disagreements of decision points, information
    points with the time that they take, and decisions without information. A sample that several PLPs have logged
    counts once. With --refusals, an information point can provide the result as an attribute, so that policies can
    refuse after three refusals.
    """
    if options.last is not None and (options.since or options.until):
        raise MalformedError("cli.usage", "--last is a whole period", hint="give --since and --until without it")
    since = None if options.since is None else parse_instant(options.since)
    until = None if options.until is None else parse_instant(options.until)
    if options.last is not None:
        since, until = session.now - timedelta(seconds=options.last), session.now
    combine = _modes(options.plan_file)
    cluster = options.spark.cluster()
    path = cluster.path(options.source)
    with spark_session(cluster, path) as on:
        lines = reading(on.spark).schema("value string").option("recursiveFileLookup", "true").text(path)
        found = audit_components(lines, combine, since=since, until=until, top=options.limit)
    if options.refusals is not None:
        write_bytes(options.refusals, refusals_file(found, until or session.now), overwrite=True)
    return CommandAnswer(found.as_dict, _shown(found))


def _modes(plan_file: str | None) -> CombineAnswers:
    if plan_file is None:
        return RoleModes({})
    roles = load_domain_plan(plan_file).plan.roles
    return RoleModes(
        {
            name: (AnswerMode.parse(role.combining["decision"]), dict(role.priorities))
            for name, role in roles.items()
            if "decision" in role.combining
        }
    )


def refusals_file(found: ComponentAudit, until: datetime) -> bytes:
    """Return the refusals of an audit as `AuditAttributes` reads them."""
    rows = found.refusals.as_dicts()
    entities = {str(row["subject"]): {"refusals": row["refusals"], "last": row["last"]} for row in rows}
    return json.dumps({"until": until.isoformat(), "entities": entities}, indent=2).encode() + b"\n"


def _shown(found: ComponentAudit) -> Iterator[Shown]:
    for name, table in found.tables().items():
        if table.rows:
            yield f"{name} (p50, p95 and longest in microseconds)" if "p50" in table.columns else name
            yield from show_table(table, Petnames({}))
            yield ""
    aside = f"; {counted(found.quarantined, 'line')} of other content" if found.quarantined else ""
    yield f"{counted(found.samples, 'sample')}{aside}"
