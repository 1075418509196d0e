"""`penstock pipeline evaluate`: what attribute-based policies say of every row of a table of requests."""

from datetime import datetime
from typing import Any

import click

from penstock.apps.cli.pipeline.options import Run, out_options, run_job, spark_options, stream_options
from penstock.apps.cli.pipeline.runs import clock
from penstock.apps.cli.policy.files import read_root
from penstock.apps.cli.shared import options
from penstock.apps.cli.shared.files import read_bytes, within
from penstock.apps.cli.shared.groups import example
from penstock.apps.cli.shared.session import CommandSession
from penstock.pipeline.conflicts.input import InputTable, StorageFormat
from penstock.pipeline.evaluate.evaluate import TablePolicies
from penstock.pipeline.evaluate.mapping import read_request_mapping
from penstock.pipeline.jobs.evaluate import Evaluate


@click.command()
@click.argument("source", metavar="TABLE")
@click.option("--mapping", "mapping_file", required=True, metavar="FILE", help="Which column is which attribute.")
@click.option(
    "--policy", "policy_file", required=True, metavar="FILE", help="The policy or policy set: XML, JSON or text."
)
@click.option("--refer", "referred", multiple=True, metavar="FILE", help="A policy that it refers to; repeat it.")
@click.option(
    "--format",
    "written",
    type=click.Choice([one.value for one in StorageFormat]),
    help="How the table is stored; by itself what its name ends with, or Parquet.",
)
@click.option("--log", is_flag=True, help="Record each decision, as the decision service does.")
@options.at_option
@out_options(required=True)
@stream_options
@spark_options
@options.output_option()
@click.pass_obj
@example(
    """
penstock pipeline evaluate requests.parquet --mapping requests.toml --policy records.policy --out decided
penstock pipeline evaluate arriving/ --format json --mapping requests.toml --policy root.xml --refer records.xml \\
    --log --out decided --stream
"""
)
def evaluate(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    source: str,
    mapping_file: str,
    policy_file: str,
    referred: tuple[str, ...],
    written: str | None,
    log: bool,
    at: str | None,
    output: str,
    **rest: Any,
) -> None:
    """Decide every request of a TABLE: a row each, in Parquet, CSV with a header, or JSON lines.

    Each row is written again with the decision, the status code, obligations and advice, the policies that applied, and
    the revision of the policies. As many rows go in as come out; this is checked, and printed. Values that cannot be
    read make a row Indeterminate; a table that cannot be read stops the job.
    """
    how = Run.of(output, **rest)
    data = read_bytes(mapping_file)
    with within(mapping_file):
        columns = read_request_mapping(data)
    policies = TablePolicies(read_root(policy_file), tuple(read_root(file) for file in referred))
    table = InputTable.at(how.cluster.path(source), None if written is None else StorageFormat(written))
    moment = options.moment(at, session)

    def fixed() -> datetime:
        return moment

    identity = session.random(16).hex() if log else None
    run_job(Evaluate(table, columns, policies, clock(session) if at is None else fixed, identity), how)
