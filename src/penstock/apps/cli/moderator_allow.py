"""`penstock moderator allow`: who receives what from whom, and why others do not."""

from collections.abc import Sequence
from typing import Any

import click

from penstock.apps.cli import paint
from penstock.apps.cli.groups import example
from penstock.apps.cli.moderator_sources import EVENT, Source, opened, source_options
from penstock.apps.cli.options import JSON, WHO, at_option, moment, output_option
from penstock.apps.cli.session import Session, say_json
from penstock.errors import RefusedError
from penstock.model.names import TypeKey
from penstock.model.principals import Principal
from penstock.moderator.allow import Allowance, Subscriptions
from penstock.moderator.publications import Publications
from penstock.moderator.rules import PublishRule


@click.command()
@click.argument("event", **EVENT)
@click.option("--publisher", **WHO, help="Ask about this publisher alone.")
@click.option("--subscriber", **WHO, help="Ask about this subscriber alone.")
@at_option
@source_options
@output_option()
@click.pass_obj
@example("penstock moderator allow Line.Press --subscriber ada --file rules.yaml")
def allow(  # noqa: PLR0913  # one argument an option
    session: Session,
    /,
    *,
    event: str,
    publisher: str | None,
    subscriber: str | None,
    at: str | None,
    output: str,
    **where: Any,
) -> None:
    """Say who receives EVENT from whom, and why not.

    The status is 1 where nobody does.
    It looks at what the publisher demands of subscribers, at what the subscriber demands of publishers, and at what the
    rules demand of the publisher itself.
    With --publisher and --subscriber it is one pair; else all who have a rule, or have subscribed.
    """
    now = moment(at, session)
    with opened(**where, now=now) as source:
        vocabulary = source.base.detector.vocabulary
        known = Subscriptions(vocabulary, source.base.rules, source.profiles, mode=source.base.mode)
        of, who = (None if word is None else source.cast.principal(word) for word in (publisher, subscriber))
        published = (rule for rule in source.base.rules if isinstance(rule, PublishRule))
        profiles = {**source.profiles, **source.publishers}
        publications = Publications(vocabulary, published, profiles, mode=source.base.mode)
        pairs = [publications.restrict(pair) for pair in _pairs(known, source, source.event(event), of, who)]
        _answer_pairs(pairs, source, event, output)


def _pairs(
    known: Subscriptions, source: Source, event: TypeKey, publisher: Principal | None, subscriber: Principal | None
) -> list[Allowance]:
    if subscriber is None:
        return [pair for pair in known.pairs(event) if publisher in (None, pair.publisher)]
    if publisher is not None:
        return [known.allow(event, publisher, subscriber)]
    # Who has not subscribed yet may ask what it would get.
    publishers = {each for rule in source.base.detector.rules.values() for each in rule.publishers}
    found = (known.allow(event, each, subscriber) for each in sorted(publishers))
    return [pair for pair in found if pair.published]


def _answer_pairs(pairs: Sequence[Allowance], source: Source, event: str, output: str) -> None:
    cast = source.cast
    allowed = [pair for pair in pairs if pair.allowed]
    if output == JSON:
        say_json(
            {
                "event": event,
                "pairs": [
                    {
                        "publisher": cast.show(pair.publisher),
                        "subscriber": cast.show(pair.subscriber),
                        "allowed": pair.allowed,
                        "reasons": [cast.speak(reason) for reason in pair.reasons],
                    }
                    for pair in pairs
                ],
            }
        )
    else:
        for pair in pairs:
            mark = "✓" if pair.allowed else "✗"
            verb = "receives" if pair.allowed else "does not receive"
            paint.line(f"{mark} {cast.show(pair.subscriber)} {verb} {event} from {cast.show(pair.publisher)}")
            for reason in pair.reasons:
                paint.line(f"    {cast.speak(reason)}")
    if not allowed:
        said = f"nobody receives `{event}`" if pairs else f"nobody publishes `{event}`, or nobody has subscribed to it"
        raise RefusedError("moderator.not-allowed", said, hint="`penstock moderator show` has the rules")
