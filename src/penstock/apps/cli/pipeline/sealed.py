"""`penstock pipeline seal`, `unseal` and `compact`: write, read and compact sealed logs on Spark."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import click

from penstock.apps.cli.pipeline.options import (
    KeyFilesOptions,
    Run,
    TableJobOptions,
    jetstream_option,
    messages_of,
    run_job,
)
from penstock.apps.cli.pipeline.runs import EventSource, clock, load
from penstock.apps.cli.sealed import CipherOptions, check_signed
from penstock.apps.cli.shared.commands import CommandAnswer, argument, command, option, option_class, output_option
from penstock.apps.cli.shared.options import WHO, NamesOption, ShelfOptions
from penstock.apps.cli.shared.session import CommandSession
from penstock.codec.limits import BLOCK_ROWS as MOST_ROWS
from penstock.errors import MalformedError
from penstock.model.types import EventType
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.jobs.job import ByPolicy, Watched
from penstock.pipeline.jobs.sealed import Blocks, Compact, LogBlocks, Seal, Sink, TableBlocks, Unseal
from penstock.pipeline.sealed.log import KeyFiles, read_signer
from penstock.pipeline.sealed.signers import SignerPolicy
from penstock.pipeline.sealed.writer import BLOCK_ROWS, Compacting, Writing
from penstock.trust.event_types import VerifiedType

_ROWS: Final = click.IntRange(1, MOST_ROWS)


@option_class
class SealedTypesOptions:
    """Options for the types of events, and who may sign them."""

    shelf: ShelfOptions
    policy_file: str | None = option(
        "--policy", metavar="FILE", help="Read types, and who may sign, from this policy file."
    )
    type_files: tuple[str, ...] = option(
        "--type-file", multiple=True, metavar="FILE", help="Read a signed type. Can be repeated."
    )

    def known(self, session: CommandSession, policy: PipelinePolicy | None) -> "_Known":
        """Read the types, besides those of a policy. Raises what reading them raises, and `cli.type-file`."""
        found = [self.shelf.verified(file, session.now)[0] for file in self.type_files]
        found += [] if policy is None else policy.types
        if not found:
            raise MalformedError(
                "cli.type-file",
                "the event types are not known",
                hint="give --policy, or --type-file for each of them",
            )
        return _Known(tuple(found), policy)


class _Known(NamedTuple):
    """The types of events, and the policy, if one was given."""

    verified: tuple[VerifiedType, ...]
    policy: PipelinePolicy | None

    @property
    def types(self) -> tuple[EventType, ...]:
        return tuple(one.event_type for one in self.verified)

    def judge(self, *, verify: bool) -> SignerPolicy | None:
        """Return the policy that decides whose signatures count. Raises `MalformedError` (`cli.policy`)."""
        if self.policy is not None:
            return SignerPolicy(self.policy, self.verified)
        signed = [t.name.name for t in self.types if verify or t.signed]
        if signed:
            raise MalformedError(
                "cli.policy",
                f"events of `{signed[0]}` must be signed by a principal that may publish them",
                hint="give --policy: its credentials say who may publish",
            )
        return None


@option_class
class _Seal:
    source: str = argument(metavar="FOLDER")
    types: SealedTypesOptions
    keys: KeyFilesOptions
    sender: str | None = option("--sender", **WHO, help="Seal unsigned blocks in this principal's name.")
    signer: str | None = option(
        "--key", metavar="FILE", help="Sign the blocks with this private key, in its principal's name."
    )
    rows: int = option(
        "--rows",
        type=_ROWS,
        default=BLOCK_ROWS,
        show_default=True,
        metavar="NUMBER",
        help="Put at most this many events into a block.",
    )
    cipher: CipherOptions
    to_jetstream: tuple[str, str] | None = option(
        "--to-jetstream", nargs=2, metavar="URL STREAM", help="Publish the blocks too, in the form that brokers accept."
    )
    jetstream_more: tuple[str, ...] = jetstream_option()
    job: TableJobOptions
    output: str = output_option()
    names: NamesOption


@command(
    example="""
penstock pipeline seal ingested --type-file numberplate.type --ring plates.ring --kek plates.kek \\
    --sender camera-broker --out sealed
penstock pipeline seal ingested --type-file numberplate.type --ring plates.ring --kek plates.kek \\
    --key camera.key --to-jetstream nats://localhost:4222 PLATES --jetstream subject=plates --out sealed --stream
"""
)
def seal(session: CommandSession, options: _Seal) -> CommandAnswer:
    """Seal events as brokers do, and keep them as a sealed log.

    FOLDER is what `ingest` or `admit` wrote. Each attribute is sealed separately, or the event as a whole, as the
    type's owner has chosen. Events of types that are not sealed go to quarantine. A block contains neither an event's
    publisher nor its version: if these matter, sign it or keep the input.

    Published blocks are no larger than brokers accept. With --stream each block is published once, even if the job is
    killed; without it, --overwrite publishes everything again.
    """
    how = options.job.run()
    policy_file = options.types.policy_file
    loaded = None if policy_file is None else load(policy_file, session)
    types = options.types.known(session, loaded).types
    check_signed(types, options.signer)
    if (options.sender is None) is (options.signer is None):
        raise MalformedError("cli.sender", "the sender of the blocks is not given", hint="give --sender, or --key")
    signing = None if options.signer is None else how.cluster.path(options.signer)
    name = (
        read_signer(signing).principal if signing is not None else options.names.load().principal(options.sender or "")
    )
    keys = options.keys.load(how)
    # Errors in them are reported here and not by a task.
    keys.read()
    writing = Writing(keys, types, name, session.now, options.rows, options.cipher.settings(), signing)
    sink = None
    if options.to_jetstream is not None:
        sink = _sink(messages_of(options.to_jetstream, options.jetstream_more), how, types, keys)
        writing = writing.for_brokers()
    path, table = how.source(options.source)
    return run_job(Seal(path, types, writing, clock(session), sink, table=table), how)


def _sink(messages: Mapping[str, str], how: Run, types: tuple[EventType, ...], keys: KeyFiles) -> Sink:
    # Imported late: writing files does not need nats-py.
    from penstock.pipeline.sealed.messages import Blinding, MessageSink  # noqa: PLC0415

    found = MessageSink(messages, Blinding.of(types, keys))
    if how.cluster.remote is None:
        found.check()
    return found


@option_class
class _Unseal:
    source: str | None = argument(required=False, metavar="[FOLDER]")
    types: SealedTypesOptions
    keys: KeyFilesOptions
    verify: bool = option(
        "--verify", is_flag=True, help="Open only signed blocks, also of types that need no signature."
    )
    from_jetstream: tuple[str, str] | None = option(
        "--from-jetstream", nargs=2, metavar="URL STREAM", help="Read messages instead of a sealed log."
    )
    jetstream_more: tuple[str, ...] = jetstream_option()
    job: TableJobOptions
    output: str = output_option()


@command(
    example="""
penstock pipeline unseal sealed --type-file numberplate.type --ring plates.ring --kek plates.kek --out opened
"""
)
def unseal(session: CommandSession, options: _Unseal) -> CommandAnswer:
    """Open a sealed log, as far as you have the keys. The other attributes are empty, and are listed at the end.

    FOLDER is what `seal`, `compact` or `unseal` wrote, or a table with the rows of such a log. Opened events are
    written where `deliver`, `whatif` and `admit` look for events. Blocks of an epoch whose key is missing stay sealed,
    and can be opened later: a key of the type, or of an attribute for which you have keys of other epochs. Blocks that
    do not open go to quarantine unchanged, and so do copies. If the type's owner requires signatures, blocks are
    opened only if their signer may publish such events by the policy.
    """
    how = options.job.run()
    keys = options.keys.load(how)
    messages = None if options.from_jetstream is None else messages_of(options.from_jetstream, options.jetstream_more)
    source = None if options.source is None else how.source(options.source)

    def make(policies: tuple[PipelinePolicy, ...]) -> Unseal:
        known = options.types.known(session, next(iter(policies), None))
        judge = known.judge(verify=options.verify)
        return Unseal(_blocks(source, messages, known.types), known.types, keys, judge, options.verify)

    policy = options.types.policy_file
    return run_job(make(()) if policy is None else ByPolicy(Watched((policy,), clock(session)), make), how)


def _blocks(source: EventSource | None, messages: Mapping[str, str] | None, types: tuple[EventType, ...]) -> Blocks:
    if messages is not None and source is None:
        # Imported late: reading files does not need nats-py.
        from penstock.pipeline.sealed.messages import MessageBlocks  # noqa: PLC0415

        return MessageBlocks(messages, types)
    if messages is None and source is not None:
        return _logged(source)
    raise MalformedError(
        "cli.resource", "unseal reads either a sealed log or a stream", hint="give a folder, or --from-jetstream"
    )


def _logged(source: EventSource) -> Blocks:
    path, table = source
    if table is not None and table.records:
        raise MalformedError(
            "tables.address", f"`{table.name}` is not a sealed log", hint="give --from-jetstream to unseal"
        )
    return LogBlocks(path) if table is None else TableBlocks(table)


@option_class
class _Compact:
    source: str = argument(metavar="FOLDER")
    keys: KeyFilesOptions
    rows: int = option(
        "--rows",
        type=_ROWS,
        default=BLOCK_ROWS,
        show_default=True,
        metavar="NUMBER",
        help="Put at most this many events into a block.",
    )
    job: TableJobOptions
    output: str = output_option()


@command(example="penstock pipeline compact sealed --ring plates.ring --kek plates.kek --out compacted")
def compact(options: _Compact) -> CommandAnswer:
    """Merge small blocks of a sealed log into large ones.

    FOLDER is what `seal` or `unseal` wrote, and is not changed. It can also be a table with the rows of such a log,
    such as delta:PATH. Blocks are sealed again with the keys of the same
    epochs. Blocks that are signed, or that have a column whose key you do not have, stay as they are.
    """
    how = options.job.run()
    keys = options.keys.load(how)
    keys.read()
    return run_job(Compact(_logged(how.source(options.source)), Compacting(keys, options.rows)), how)
