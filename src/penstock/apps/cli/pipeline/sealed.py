"""`penstock pipeline seal`, `unseal` and `compact`: sealed logs on Spark."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import click

from penstock.apps.cli.pipeline.options import (
    Run,
    jetstream_options,
    key_files_options,
    messages_of,
    out_options,
    run_job,
    spark_options,
    stream_options,
)
from penstock.apps.cli.pipeline.runs import clock, load
from penstock.apps.cli.sealed.options import check_signed, cipher_options
from penstock.apps.cli.shared import options
from penstock.apps.cli.shared.credentials import load_verified_type
from penstock.apps.cli.shared.groups import example
from penstock.apps.cli.shared.names import load_names
from penstock.apps.cli.shared.session import CommandSession
from penstock.crypto.sealer import ALGORITHMS, PADDINGS, SealerSettings
from penstock.errors import MalformedError
from penstock.model.limits import DEFAULT_LIMITS
from penstock.model.types import EventType
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.jobs.job import ByPolicy, Watched
from penstock.pipeline.jobs.sealed import Blocks, Compact, LogBlocks, Seal, Sink, Unseal
from penstock.pipeline.sealed.log import KeyFiles, read_signer
from penstock.pipeline.sealed.signers import SignerPolicy
from penstock.pipeline.sealed.writer import BLOCK_ROWS, Compacting, Writing
from penstock.trust.event_types import VerifiedType

F = TypeVar("F", bound=Callable[..., Any])
_ROWS: Final = click.IntRange(1, DEFAULT_LIMITS.block_rows)


def sealed_types_options(function: F) -> F:
    """Add `--policy`, `--type-file`, `--parent` and `--previous`."""
    for option in (
        click.option("--type-file", "type_files", multiple=True, metavar="FILE", help="A signed type; repeat."),
        click.option("--policy", "policy_file", metavar="FILE", help="A policy file, for its types and who may sign."),
    ):
        function = option(function)
    return options.shelf_options(function)


class _Known(NamedTuple):
    """The types that events may be of, and the policy, if one was given."""

    verified: tuple[VerifiedType, ...]
    policy: PipelinePolicy | None

    @property
    def types(self) -> tuple[EventType, ...]:
        return tuple(one.event_type for one in self.verified)

    def judge(self, *, verify: bool) -> SignerPolicy | None:
        """Return who says whose signatures count. Raises `MalformedError` (`cli.policy`) where nobody could."""
        if self.policy is not None:
            return SignerPolicy(self.policy, self.verified)
        signed = [t.name.name for t in self.types if verify or t.signed]
        if signed:
            raise MalformedError(
                "cli.policy",
                f"events of `{signed[0]}` have to be signed by somebody who may publish them",
                hint="give --policy: its credentials say who may",
            )
        return None


def _known(
    session: CommandSession,
    policy: PipelinePolicy | None,
    type_files: tuple[str, ...],
    parent: tuple[str, ...],
    previous: tuple[str, ...],
) -> _Known:
    found = [load_verified_type(file, parent, previous, session.now)[0] for file in type_files]
    found += [] if policy is None else policy.types
    if not found:
        raise MalformedError(
            "cli.type-file", "the event types have to be known", hint="give --policy, or --type-file for each of them"
        )
    return _Known(tuple(found), policy)


@click.command()
@click.argument("source", metavar="FOLDER")
@sealed_types_options
@key_files_options(required=True)
@click.option("--sender", **options.WHO, help="In whose name the blocks are sealed, where they are not signed.")
@click.option("--key", "signer", metavar="FILE", help="Sign the blocks with this private key, in its name.")
@click.option(
    "--rows", type=_ROWS, default=BLOCK_ROWS, show_default=True, metavar="NUMBER", help="Events in a block, at most."
)
@cipher_options
@jetstream_options("--to-jetstream", "Publish the blocks too, as brokers take them.")
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
penstock pipeline seal ingested --type-file numberplate.type --keys plates.ring --kek plates.kek \\
    --key camera.key --to-jetstream nats://localhost:4222 PLATES --jetstream subject=plates --out sealed --stream
"""
)
def seal(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
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
    algorithm: str,
    pad: str,
    to_jetstream: tuple[str, str] | None,
    jetstream_more: tuple[str, ...],
    output: str,
    names_file: str | None,
    **rest: Any,
) -> None:
    """Seal events as brokers do, and keep them as a sealed log.

    FOLDER is what `ingest` or `admit` wrote. Each attribute is sealed by itself, or the event as a whole: the owner of
    the type has chosen. Events of types that are not sealed go to quarantine. A block does not say who published an
    event, nor in which version: sign it, or keep the input, where that matters.

    Blocks that are published are no larger than brokers take them. With --stream each is published once, whenever the
    job is killed; without, an --overwrite publishes everything again.
    """
    how = Run.of(output, **rest)
    loaded = None if policy_file is None else load(policy_file, session)
    types = _known(session, loaded, type_files, parent, previous).types
    check_signed(types, signer)
    if (sender is None) is (signer is None):
        raise MalformedError("cli.sender", "blocks are sealed in somebody's name", hint="give --sender, or --key")
    signing = None if signer is None else how.cluster.path(signer)
    name = read_signer(signing).principal if signing is not None else load_names(names_file).principal(sender or "")
    keys = how.key_files(ring_file, kek_file)
    # What is wrong with them is told here, and not by a task.
    keys.read()
    settings = SealerSettings(ALGORITHMS[algorithm], PADDINGS[pad])
    writing = Writing(keys, types, name, session.now, rows, settings, signing)
    sink = None
    if to_jetstream is not None:
        sink = _sink(messages_of(to_jetstream, jetstream_more), how, types, keys)
        writing = writing.for_brokers()
    run_job(Seal(how.cluster.path(source), types, writing, clock(session), sink), how)


def _sink(options: Mapping[str, str], how: Run, types: tuple[EventType, ...], keys: KeyFiles) -> Sink:
    # Whoever writes files need not have what talks to NATS.
    from penstock.pipeline.sealed.messages import Blinding, MessageSink  # noqa: PLC0415

    found = MessageSink(options, Blinding.of(types, keys))
    if how.cluster.remote is None:
        found.check()
    return found


@click.command()
@click.argument("source", required=False, metavar="[FOLDER]")
@sealed_types_options
@key_files_options(required=True)
@click.option("--verify", is_flag=True, help="Open only what is signed, also of types that need not be.")
@jetstream_options("--from-jetstream", "Read messages in place of a sealed log.")
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
    session: CommandSession,
    /,
    *,
    source: str | None,
    policy_file: str | None,
    type_files: tuple[str, ...],
    parent: tuple[str, ...],
    previous: tuple[str, ...],
    ring_file: str,
    kek_file: str,
    verify: bool,
    from_jetstream: tuple[str, str] | None,
    jetstream_more: tuple[str, ...],
    output: str,
    **rest: Any,
) -> None:
    """Open a sealed log: as many attributes as keys are held for; the others are empty, and named at the end.

    FOLDER is what `seal`, `compact` or `unseal` wrote. What is opened stands where `deliver`, `whatif` and `admit` look
    for events. Blocks of an epoch whose key is lacking, of the type or of an attribute that has keys of others, stay
    sealed, and can be opened later; blocks that do not open go to quarantine, as they are, and so do copies. Where the
    owner of a type wants it signed, blocks are opened only if who has signed them may publish such events by the
    policy.
    """
    how = Run.of(output, **rest)
    keys = how.key_files(ring_file, kek_file)
    messages = None if from_jetstream is None else messages_of(from_jetstream, jetstream_more)
    path = None if source is None else how.cluster.path(source)

    def make(policies: tuple[PipelinePolicy, ...]) -> Unseal:
        known = _known(session, next(iter(policies), None), type_files, parent, previous)
        judge = known.judge(verify=verify)
        return Unseal(_blocks(path, messages, known.types), known.types, keys, judge, verify)

    run_job(make(()) if policy_file is None else ByPolicy(Watched((policy_file,), clock(session)), make), how)


def _blocks(path: str | None, messages: Mapping[str, str] | None, types: tuple[EventType, ...]) -> Blocks:
    if messages is not None and path is None:
        # Whoever reads files need not have what talks to NATS.
        from penstock.pipeline.sealed.messages import MessageBlocks  # noqa: PLC0415

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

    FOLDER is what `seal` or `unseal` wrote; it stays as it is. Blocks are sealed again under the keys of the same
    epochs. Those that are signed, or have a column whose key is not held, are left as they are.
    """
    how = Run.of(output, **rest)
    keys = how.key_files(ring_file, kek_file)
    keys.read()
    run_job(Compact(LogBlocks(how.cluster.path(source)), Compacting(keys, rows)), how)
