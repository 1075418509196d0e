"""What is left of a policy, as columns: a whole frame of events shows what the policy permits of each."""

from pyspark.sql import SparkSession
from tests.pipeline.rows import collected, transit_frame
from tests.policy.kit import NOW
from tests.policy.random_events import IDS, NAMES, TYPE, EventMaker

from penstock.guard.policies import Residuals
from penstock.model import TransitEvent
from penstock.pipeline.enforce.policy import PipelinePolicy
from penstock.pipeline.enforce.restrict import deliver_one, mask
from penstock.pipeline.frames import ID, transit_sources
from penstock.policy.engine.evaluate import evaluate
from penstock.policy.engine.lookup import Context, NoSources
from penstock.policy.language.datatypes import STRING
from penstock.policy.language.event_attributes import ATTRIBUTE_NAME, EVENT, data_type_of
from penstock.policy.language.requests import SUBJECT, Facts, key_of
from penstock.policy.language.results import XacmlDecision
from penstock.policy.syntax.text.policies import read_text_policy
from penstock.trust.capabilities import Right
from penstock.trust.credentials import Credentials

EVENTS = "".join(
    f'attribute {one.name} {{ category = resource id = "{EVENT}{one.name}" type = {data_type_of(one.spec.kind)} }}\n'
    for one in TYPE.attributes
)
POLICY = read_text_policy(f"""{EVENTS}
attribute role {{ category = subject id = "urn:example:role" type = string }}
attribute which {{ category = resource id = "{ATTRIBUTE_NAME}" type = string }}

policy p {{
    apply deny-overrides
    rule closed {{ deny target clause role == "guest" condition not open }}
    rule late {{ deny condition dateTime-bag-size(at) == 1 and at > "2026-05-01T12:30:00Z":dateTime }}
    rule texts {{
        permit
        target clause which == "text" or which == "other"
        condition string-starts-with("a%", text) or "b" in other or weight < 2.0
    }}
    rule others {{
        permit
        target clause which == "level" or which == "count"
        condition string-regexp-match("[ab]", level) and not (count in [1, 2])
    }}
}}
""")


def test_columns_show_what_is_permitted(spark: SparkSession) -> None:
    known: Facts = {key_of(SUBJECT, "urn:example:role", STRING): ("guest",)}
    maker = EventMaker(7)
    sent = [TransitEvent(TYPE.key, TYPE.ancestors, maker.event(), str(number), NOW) for number in range(80)]
    restriction = Residuals(POLICY).restriction(known, Right.SUBSCRIBE, TYPE)
    masked = mask(restriction, TYPE, transit_sources([TYPE]), PipelinePolicy(Credentials()))
    rows = collected(deliver_one(transit_frame(spark, [TYPE], sent), masked, TYPE))
    found = {row[ID]: {name for name in IDS if row[name] is not None} for row in rows}

    def permitted(event: TransitEvent, name: str) -> bool:
        facts = {**known, **NAMES.of(TYPE.by_name[name]), **NAMES.facts(event.values)}
        return evaluate(POLICY, Context(None, NOW, NoSources(), facts)).decision is XacmlDecision.PERMIT

    expected = {event.id: {name for name in IDS if permitted(event, name)} for event in sent}
    shown = {event.id: {name for name in expected[event.id] if IDS[name] in event.values} for event in sent}
    assert found == {name: shown[name] for name, those in expected.items() if those}
    assert len(rows) > 5
