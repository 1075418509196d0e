"""`penstock topic`: make topics, look at them, verify them, give rights on them."""

from collections.abc import Iterable, Iterator
from typing import Any

import click

from penstock.apps.cli.certs.grants import Issuing, SubjectOptions
from penstock.apps.cli.shared.commands import (
    CommandAnswer,
    argument,
    command,
    one_answer,
    option,
    option_class,
    output_option,
)
from penstock.apps.cli.shared.credentials import Shelf, load_type, show_type
from penstock.apps.cli.shared.describe import Wording, name_data, type_data, validity_data
from penstock.apps.cli.shared.groups import Verbs
from penstock.apps.cli.shared.options import SEXP, WHO, AtOption, KeyOptions, NamesOption, OutputFile
from penstock.apps.cli.shared.session import CommandSession, Warned
from penstock.apps.cli.shared.terminal import fact_table
from penstock.apps.cli.types.signatures import (
    TypeSigner,
    TypeSigningOptions,
    shown_facts,
    shown_problem,
    verified_facts,
)
from penstock.codec.sexp import advanced
from penstock.model.principals import Principal
from penstock.model.topics import TopicName
from penstock.trust.capabilities import Right
from penstock.trust.certificates import Authorisation, Statement
from penstock.trust.subjects import Subject
from penstock.trust.topics import lacking_above, sign_topic, topic_tag, verify_topic

_RIGHTS = click.Choice([right.value for right in Right if not right.on_network])


@click.group(cls=Verbs)
def topic() -> None:
    """Manage topics: plain messages under names that form a tree."""


def super_topic_option() -> Any:
    """Declare `--super-topic`."""
    return option(
        "--super-topic", multiple=True, metavar="FILE", help="Read a signed topic that it is part of. Can be repeated."
    )


@option_class
class _New:
    path: str = argument(metavar="PATH")
    key: KeyOptions
    owner: str | None = option("--owner", **WHO, help="Set the topic's owner (default: the signing key).")
    above: tuple[str, ...] = super_topic_option()
    signing: TypeSigningOptions
    destination: OutputFile
    output: str = output_option()
    names: NamesOption


@command(
    topic,
    example="""
penstock topic new news --key agency.key --out news.topic
penstock topic new news/sport --key agency.key --super-topic news.topic --out sport.topic
""",
)
def new(session: CommandSession, options: _New) -> CommandAnswer:
    """Make the topic PATH and sign it.

    A path is words separated by /: a/b is part of a, and subscribers of a receive it too.
    """
    making = TypeSigner.of(options.key, options.signing, options.destination, options.names)
    shelf = Shelf.of(*options.above)
    key = making.key.open()
    made = TopicName(making.owner(options.owner, key), options.path)
    signed = sign_topic(made, key, making.credentials_for(made.owner, options.owner))
    if not making.signing.unchecked:
        verify_topic(signed, session.now, topics=shelf)
    return making.finish(signed, "topic", _topic_data(made), [f"{making.names.show(made.owner)}/{made.path}"])


def _topic_data(name: TopicName) -> dict[str, object]:
    return {
        "owner": str(name.owner),
        "path": name.path,
        "super_topics": [above.path for above in name.super_topics],
        "type": name_data(name.type_name),
    }


@option_class
class _Show:
    file: str = argument()
    output: str = output_option(SEXP)
    names: NamesOption


@command(topic, example="penstock topic show sport.topic")
def show(options: _Show) -> CommandAnswer:
    """Show the topic in FILE without verifying it. Use `penstock topic verify` to verify it."""
    names = options.names.load()
    shown = show_type(options.file)
    if options.output == SEXP:
        return CommandAnswer({}, advanced(shown.value).split("\n"))
    name = TopicName.of_type(shown.unverified.definition.name)
    facts = [("topic", name.path), ("owner", names.show(name.owner))]
    facts += [("part of" if not index else "", above.path) for index, above in enumerate(name.super_topics)]
    facts += [("event type", name.type_name.name), *shown_facts(shown, names)]
    data = type_data(shown.unverified) | _topic_data(name) | shown_problem(shown)
    return CommandAnswer(data, [fact_table(facts)])


@option_class
class _Verify:
    file: str = argument()
    network: str | None = option(
        "--network", metavar="OWNER/NAME", help="Check also that it may be installed on this network."
    )
    above: tuple[str, ...] = super_topic_option()
    at: AtOption
    output: str = output_option()
    names: NamesOption


@command(topic, example="penstock topic verify sport.topic --super-topic news.topic")
def verify(session: CommandSession, options: _Verify) -> CommandAnswer:
    """Check that the topic in FILE is signed by its owner, or by a manager that the owner appointed."""
    with one_answer({"ok": False}):
        names = options.names.load()
        unverified = load_type(options.file)
        place = None if options.network is None else names.network(options.network)
        verified = verify_topic(unverified, options.at.moment(session), topics=Shelf.of(*options.above), network=place)
        name = TopicName.of_type(verified.event_type.name)
    wording = Wording(names, verified.event_type)
    told = {"signer": str(verified.signer), "because": list(verified.because)}
    data = {"ok": True, "id": verified.id} | _topic_data(name) | validity_data(verified.validity) | told
    facts = fact_table(verified_facts(verified, unverified, wording, place), indent=2)
    return CommandAnswer(data, [f"✓ {wording.who(name.owner)}/{name.path}", facts])


@option_class
class _Grant:
    patterns: tuple[str, ...] = argument(nargs=-1, required=True, metavar="PATTERN...")
    key: KeyOptions
    subject: SubjectOptions
    owner: str | None = option("--owner", **WHO, help="Set the topics' owner (default: the signing key).")
    rights: tuple[str, ...] = option(
        "--right", multiple=True, required=True, type=_RIGHTS, help="Grant this right. Can be repeated."
    )
    with_super_topics: bool = option(
        "--with-super-topics", is_flag=True, help="Include all topics that these are part of."
    )
    propagate: bool = option("--propagate", is_flag=True, help="Let the subject pass the right on.")
    destination: OutputFile
    output: str = output_option()
    names: NamesOption


@command(
    topic,
    example="""
penstock topic grant news/sport --key agency.key --to reader --right subscribe --days 30 --out reader.cert
penstock topic grant 'news/sport/**' --key agency.key --to reporter --right publish --with-super-topics
""",
)
def grant(session: CommandSession, options: _Grant) -> CommandAnswer:
    """Grant rights on the topics that match a PATTERN.

    In a pattern, ** stands for one or more levels. Publishing on a topic also needs the right on all topics that it is
    part of; subscribing needs it on that topic only.
    """
    made = Issuing.of(session, options.key, options.subject, options.destination, options.names)
    chosen = [Right(right) for right in options.rights]

    def state(issuer: Principal, subject: Subject) -> Statement:
        whose = issuer if options.owner is None else made.names.principal(options.owner)
        tag = topic_tag(whose, options.patterns, chosen, super_topics=options.with_super_topics)
        return Authorisation(issuer, subject, tag, options.propagate, made.validity, made.comment)

    complete = options.with_super_topics or Right.PUBLISH not in chosen
    return made.issue(state, more=() if complete else tuple(_doubts(options.patterns)))


def _doubts(patterns: Iterable[str]) -> Iterator[Warned]:
    """Yield what should be said to somebody who gives less than publishing needs."""
    lacking = lacking_above(patterns)
    if lacking:
        yield Warned(
            "topic.publish-alone",
            f"publishing there needs the right on `{'`, `'.join(lacking)}` as well; --with-super-topics gives it too",
        )
