"""`penstock pipeline seal`, `unseal` and `compact`: sealed logs on Spark."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from penstock.apps.cli import options
from penstock.apps.cli.groups import example
from penstock.apps.cli.names import load_names
from penstock.apps.cli.pipeline_how import Run, pairs, run_job
from penstock.apps.cli.pipeline_options import key_files_options, out_options, spark_options, stream_options
from penstock.apps.cli.pipeline_runs import clock, load
from penstock.apps.cli.session import Session
from penstock.apps.cli.trusted import load_verified_type
from penstock.errors import MalformedError, RefusedError
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.types import EventType
from penstock.pipeline.jobs_sealed import Blocks, Compact, LogBlocks, Seal, Unseal
from penstock.pipeline.sealed_compacting import Compacting
from penstock.pipeline.sealed_log import read_signer
from penstock.pipeline.sealed_writing import BLOCK_ROWS, Writing

F = TypeVar("F", bound=Callable[..., Any])
_ROWS: Final = click.IntRange(1, DEFAULT_LIMITS.block_rows)


def sealed_types_options(function: F) -> F:
    """Add `--policy`, `--type-file`, `--parent` and `--previous`."""
    for option in (
        click.option("--type-file", "type_files", multiple=True, metavar="FILE", help="A signed type; repeat."),
        click.option("--policy", "policy_file", metavar="FILE", help="A policy file, for its types."),
    ):
        function = option(function)
    return options.shelf_options(function)


def _types(
    session: Session,
    policy_file: str | None,
    type_files: tuple[str, ...],
    parent: tuple[str, ...],
    previous: tuple[str, ...],
) -> tuple[EventType, ...]:
    found = [load_verified_type(file, parent, previous, session.now)[0] for file in type_files]
    found += [] if policy_file is None else load(policy_file, session).types
    if not found:
        raise MalformedError(
            "cli.type-file", "the event types have to be known", hint="give --policy, or --type-file for each of them"
        )
    return tuple(verified.event_type for verified in found)


@click.command()
@click.argument("source", metavar="FOLDER")
@sealed_types_options
@key_files_options(required=True)
@click.option("--sender", **options.WHO, help="In whose name the blocks are sealed, where they are not signed.")
@click.option("--key", "signer", metavar="FILE", help="Sign the blocks with this private key, in its name.")
@click.option(
    "--rows", type=_ROWS, default=BLOCK_ROWS, show_default=True, metavar="NUMBER", help="Events in a block, at most."
)
@out_options(required=True)
@stream_options
@spark_options
@options.output_option()
@options.names_option
@click.pass_obj
@example(
    """
penstock pipeline seal ingested --type-file numberplate.type --keys plates.ring --kek plates.kek \\
    --sender camera-broker --out sealed
"""
)
def seal(  # noqa: PLR0913  # one argument an option
    session: Session,
    /,
    *,
    source: str,
    policy_file: str | None,
    type_files: tuple[str, ...],
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    ring_file: str,
    kek_file: str,
    sender: str | None,
    signer: str | None,
    rows: int,
    output: str,
    names_file: str | None,
    **rest: Any,
) -> None:
    """Seal events as brokers do, and keep them as a sealed log.

    FOLDER is what `ingest` or `admit` wrote. Each attribute is sealed by itself, or the event as a whole: the owner of
    the type has chosen. Events of types that are not sealed go to quarantine. A block does not say who published an
    event, nor in which version: sign it, or keep the input, where that matters.
    """
    how = Run.of(output, **rest)
    types = _types(session, policy_file, type_files, parent, previous)
    _check(types, signer)
    if (sender is None) is (signer is None):
        raise MalformedError("cli.sender", "blocks are sealed in somebody's name", hint="give --sender, or --key")
    signing = None if signer is None else how.cluster.path(signer)
    name = read_signer(signing).principal if signing is not None else load_names(names_file).principal(sender or "")
    keys = how.key_files(ring_file, kek_file)
    # What is wrong with them is told here, and not by a task.
    keys.read()
    writing = Writing(keys, types, name, session.now, rows, signer=signing)
    run_job(Seal(how.cluster.path(source), types, writing, clock(session)), how)


def _check(types: tuple[EventType, ...], signer: str | None) -> None:
    """Refuse what readers would: Raises `RefusedError` (`seal.unsigned`)."""
    unsigned = [t.name.name for t in types if t.signed]
    if unsigned and signer is None:
        raise RefusedError("seal.unsigned", f"events of `{unsigned[0]}` have to be signed", hint="give --key")


@click.command()
@click.argument("source", required=False, metavar="[FOLDER]")
@sealed_types_options
@key_files_options(required=True)
@click.option("--from-jetstream", nargs=2, metavar="URL STREAM", help="Read messages in place of a sealed log.")
@click.option("--jetstream", "jetstream_options", multiple=True, metavar="NAME=VALUE", help="An option of it; repeat.")
@out_options(required=True)
@stream_options
@spark_options
@options.output_option()
@click.pass_obj
@example(
    """
penstock pipeline unseal sealed --type-file numberplate.type --keys plates.ring --kek plates.kek --out opened
"""
)
def unseal(  # noqa: PLR0913  # one argument an option
    session: Session,
    /,
    *,
    source: str | None,
    policy_file: str | None,
    type_files: tuple[str, ...],
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    ring_file: str,
    kek_file: str,
    from_jetstream: tuple[str, str] | None,
    jetstream_options: tuple[str, ...],
    output: str,
    **rest: Any,
) -> None:
    """Open a sealed log: as many attributes as keys are held for, and the others are empty.

    FOLDER is what `seal`, `compact` or `unseal` wrote. What is opened stands where `deliver`, `whatif` and `admit` look
    for events. Blocks whose key is not held stay sealed, and can be opened later; blocks that do not open go to
    quarantine, as they are.
    """
    how = Run.of(output, **rest)
    types = _types(session, policy_file, type_files, parent, previous)
    keys = how.key_files(ring_file, kek_file)
    messages = None
    if from_jetstream is not None:
        url, stream = from_jetstream
        messages = {"url": url, "stream": stream, **pairs(jetstream_options, "--jetstream")}
    path = None if source is None else how.cluster.path(source)
    run_job(Unseal(_blocks(path, messages, types), types, keys), how)


def _blocks(path: str | None, messages: Mapping[str, str] | None, types: tuple[EventType, ...]) -> Blocks:
    if messages is not None and path is None:
        # Whoever reads files need not have what talks to NATS.
        from penstock.pipeline.sealed_messages import MessageBlocks  # noqa: PLC0415

        return MessageBlocks(messages, types)
    if messages is None and path is not None:
        return LogBlocks(path)
    raise MalformedError(
        "cli.resource", "unseal reads either a sealed log or a stream", hint="give a folder, or --from-jetstream"
    )


@click.command()
@click.argument("source", metavar="FOLDER")
@key_files_options(required=True)
@click.option(
    "--rows", type=_ROWS, default=BLOCK_ROWS, show_default=True, metavar="NUMBER", help="Events in a block, at most."
)
@out_options(required=True)
@stream_options
@spark_options
@options.output_option()
@example("penstock pipeline compact sealed --keys plates.ring --kek plates.kek --out compacted")
def compact(*, source: str, ring_file: str, kek_file: str, rows: int, output: str, **rest: Any) -> None:
    """Put small blocks of a sealed log together to large ones.

    FOLDER is what `seal` or `unseal` wrote; it stays as it is. Blocks are sealed anew under the keys of the same
    epochs. Those that are signed, or have a column whose key is not held, are left as they are.
    """
    how = Run.of(output, **rest)
    keys = how.key_files(ring_file, kek_file)
    keys.read()
    run_job(Compact(LogBlocks(how.cluster.path(source)), Compacting(keys, rows)), how)
