"""`penstock pipeline evaluate`: what attribute-based policies say of every row of a table of requests."""

from datetime import datetime

import click

from penstock.apps.cli.pipeline.options import JobOptions, run_job
from penstock.apps.cli.pipeline.runs import clock
from penstock.apps.cli.policy.files import read_root
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.files import read_bytes, within
from penstock.apps.cli.shared.options import AtOption
from penstock.apps.cli.shared.session import CommandSession
from penstock.pipeline.conflicts.input import InputTable, StorageFormat
from penstock.pipeline.evaluate.evaluate import TablePolicies
from penstock.pipeline.evaluate.mapping import read_request_mapping
from penstock.pipeline.jobs.evaluate import Evaluate


@option_class
class _Evaluate:
    source: str = argument(metavar="TABLE")
    mapping_file: str = option(
        "--mapping", required=True, metavar="FILE", help="Read from this file which column is which attribute."
    )
    policy_file: str = option(
        "--policy", required=True, metavar="FILE", help="Decide by this policy or policy set: XML, JSON or text."
    )
    referred: tuple[str, ...] = option(
        "--refer", multiple=True, metavar="FILE", help="Read a policy that it refers to. Can be repeated."
    )
    written: str | None = option(
        "--format",
        type=click.Choice([one.value for one in StorageFormat]),
        help="Read the table in this format (default: by the name's ending, or Parquet).",
    )
    log: bool = option("--log", is_flag=True, help="Record each decision, as the decision service does.")
    at: AtOption
    job: JobOptions
    output: str = output_option()


@command(
    example="""
penstock pipeline evaluate requests.parquet --mapping requests.toml --policy records.policy --out decided
penstock pipeline evaluate arriving/ --format json --mapping requests.toml --policy root.xml --refer records.xml \\
    --log --out decided --stream
"""
)
def evaluate(session: CommandSession, options: _Evaluate) -> CommandAnswer:
    """Decide every request in a TABLE: Parquet, CSV with a header, or JSON lines, with one request in each row.

    Each row is written with the decision, the status code, obligations and advice, the policies that applied, and the
    revision of the policies. The command checks that it writes as many rows as it reads, and prints the numbers. Values
    that cannot be read make a row Indeterminate; a table that cannot be read stops the job.
    """
    how = options.job.run()
    data = read_bytes(options.mapping_file)
    with within(options.mapping_file):
        columns = read_request_mapping(data)
    policies = TablePolicies(read_root(options.policy_file), tuple(read_root(file) for file in options.referred))
    table = InputTable.at(
        how.cluster.path(options.source), None if options.written is None else StorageFormat(options.written)
    )
    moment = options.at.moment(session)

    def fixed() -> datetime:
        return moment

    identity = session.random(16).hex() if options.log else None
    return run_job(
        Evaluate(table, columns, policies, clock(session) if options.at.at is None else fixed, identity), how
    )
