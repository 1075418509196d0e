"""`penstock topic`: make topics, look at them, verify them, give rights on them."""

from collections.abc import Iterable, Iterator
from typing import Any

import click

from penstock.apps.cli.certs.grants import Issuing, subject_options
from penstock.apps.cli.shared import options
from penstock.apps.cli.shared import terminal as paint
from penstock.apps.cli.shared.credentials import Shelf, load_type, show_type
from penstock.apps.cli.shared.describe import Wording, name_data, type_data, validity_data
from penstock.apps.cli.shared.groups import Verbs, example
from penstock.apps.cli.shared.names import load_names
from penstock.apps.cli.shared.options import JSON, SEXP, moment
from penstock.apps.cli.shared.session import CommandSession, Warned, one_answer, say_block, say_json
from penstock.apps.cli.types.signatures import TypeSigner, shown_facts, shown_problem, signing_options, verified_facts
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
    """Topics: plain messages under names that form a tree."""


def super_topic_option(function: options.F) -> options.F:
    """Add `--super-topic`."""
    return click.option(
        "--super-topic", "above", multiple=True, metavar="FILE", help="A signed topic that it is part of; repeat it."
    )(function)


@topic.command()
@click.argument("path", metavar="PATH")
@options.key_options
@click.option("--owner", **options.WHO, help="Whose topic it is, where that is not the signing key.")
@super_topic_option
@signing_options
@options.write_options
@options.output_option()
@options.names_option
@click.pass_obj
@example(
    """
penstock topic new news --key agency.key --out news.topic
penstock topic new news/sport --key agency.key --super-topic news.topic --out sport.topic
"""
)
def new(
    session: CommandSession,
    /,
    *,
    path: str,
    owner: str | None,
    above: tuple[str, ...],
    **signing: Any,
) -> None:
    """Make the topic PATH and sign it.

    A path is words with / between them: a/b is part of a, and whoever subscribes to a gets it too.
    """
    making = TypeSigner.of(session, **signing)
    shelf = Shelf.of(*above)
    key = making.key()
    made = TopicName(making.owner(owner, key), path)
    signed = sign_topic(made, key, making.credentials_for(made.owner, owner))
    if not making.unchecked:
        verify_topic(signed, session.now, topics=shelf)
    making.finish(signed, "topic", _topic_data(made), [f"{making.names.show(made.owner)}/{made.path}"])


def _topic_data(name: TopicName) -> dict[str, object]:
    return {
        "owner": str(name.owner),
        "path": name.path,
        "super_topics": [above.path for above in name.super_topics],
        "type": name_data(name.type_name),
    }


@topic.command()
@click.argument("file")
@options.output_option(SEXP)
@options.names_option
@example("penstock topic show sport.topic")
def show(*, file: str, output: str, names_file: str | None) -> None:
    """Show the topic in FILE, as it says; `penstock topic verify` says whether to believe it."""
    names = load_names(names_file)
    shown = show_type(file)
    unverified = shown.unverified
    name = TopicName.of_type(unverified.definition.name)
    if output == SEXP:
        say_block(advanced(shown.value))
    elif output == JSON:
        say_json(type_data(unverified) | _topic_data(name) | shown_problem(shown))
    else:
        facts = [("topic", name.path), ("owner", names.show(name.owner))]
        facts += [("part of" if not index else "", above.path) for index, above in enumerate(name.super_topics)]
        facts.append(("event type", name.type_name.name))
        paint.facts([*facts, *shown_facts(shown, names)])


@topic.command()
@click.argument("file")
@click.option("--network", metavar="OWNER/NAME", help="Check as well that it may be installed on this network.")
@super_topic_option
@options.at_option
@options.output_option()
@options.names_option
@click.pass_obj
@example("penstock topic verify sport.topic --super-topic news.topic")
def verify(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    *,
    file: str,
    network: str | None,
    above: tuple[str, ...],
    at: str | None,
    output: str,
    names_file: str | None,
) -> None:
    """Check that the topic in FILE is what its owner, or whom the owner let manage it, has signed."""
    with one_answer({"ok": False}, as_json=output == JSON):
        names = load_names(names_file)
        unverified = load_type(file)
        place = None if network is None else names.network(network)
        verified = verify_topic(unverified, moment(at, session), topics=Shelf.of(*above), network=place)
        name = TopicName.of_type(verified.event_type.name)
    if output == JSON:
        told = {"signer": str(verified.signer), "because": list(verified.because)}
        say_json({"ok": True, "id": verified.id} | _topic_data(name) | validity_data(verified.validity) | told)
        return
    wording = Wording(names, verified.event_type)
    paint.line(f"✓ {wording.who(name.owner)}/{name.path}")
    paint.facts(verified_facts(verified, unverified, wording, place), indent=2)


@topic.command()
@click.argument("patterns", nargs=-1, required=True, metavar="PATTERN...")
@options.key_options
@subject_options
@click.option("--owner", **options.WHO, help="Whose topics they are, where that is not the signing key.")
@click.option("--right", "rights", multiple=True, required=True, type=_RIGHTS, help="A right; repeat it.")
@click.option("--with-super-topics", is_flag=True, help="On all topics that these are part of, too.")
@click.option("--propagate", is_flag=True, help="The subject may pass the right on.")
@options.write_options
@options.output_option()
@options.names_option
@click.pass_obj
@example(
    """
penstock topic grant news/sport --key agency.key --to reader --right subscribe --days 30 --out reader.cert
penstock topic grant 'news/sport/**' --key agency.key --to reporter --right publish --with-super-topics
"""
)
def grant(  # noqa: PLR0913  # one argument an option
    session: CommandSession,
    /,
    *,
    patterns: tuple[str, ...],
    owner: str | None,
    rights: tuple[str, ...],
    with_super_topics: bool,
    propagate: bool,
    **issuing: Any,
) -> None:
    """Give rights on the topics that match a PATTERN to somebody.

    In a pattern, ** stands for one or more levels. Publishing on a topic needs the right on all topics that it is part
    of as well; subscribing needs it on that topic alone.
    """
    made = Issuing.of(session, **issuing)
    chosen = [Right(right) for right in rights]

    def state(issuer: Principal, subject: Subject) -> Statement:
        whose = issuer if owner is None else made.names.principal(owner)
        tag = topic_tag(whose, patterns, chosen, super_topics=with_super_topics)
        return Authorisation(issuer, subject, tag, propagate, made.validity, made.comment)

    made.issue(state, more=() if with_super_topics or Right.PUBLISH not in chosen else tuple(_doubts(patterns)))


def _doubts(patterns: Iterable[str]) -> Iterator[Warned]:
    """Yield what should be said to somebody who gives less than publishing needs."""
    lacking = lacking_above(patterns)
    if lacking:
        yield Warned(
            "topic.publish-alone",
            f"publishing there needs the right on `{'`, `'.join(lacking)}` as well; --with-super-topics gives it too",
        )
