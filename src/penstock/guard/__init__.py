"""Combine sources of authority: `Restriction`, `decide()`, and enforcement.

Policies are in `penstock.guard.policies`: programs without policies do not load the engine.

The decision:

- `decision` has `decide()`, the only function that returns a restriction. It asks every source of authority.
- `restriction` has the value that every source produces: which attributes, which events, when.
- `enforce` compiles restrictions to functions: which attributes of an event a subscriber gets to see, for each event.
- `environment` provides the facts for dynamic conditions: time, publishing rate, outside facts.
- `decision_log` describes decisions as values and as CloudEvents, and records them.

The sources of authority:

- `capabilities` turns chains of certificates into restrictions.
- `policies` is the source for attribute-based policies. It evaluates a policy as far as possible before the event is
  known, and turns the result into branches.
- `roles` is the source for active roles, now and in history.
- `point_answers` is the source for the answers of remote decision points.
- `agreements` is the source for rules agreed through the moderator, which an owner signs and announces.
- `agreed_capabilities` expresses agreed rules as certificates.
"""

from penstock.guard.agreements import NO_AGREEMENTS as NO_AGREEMENTS
from penstock.guard.agreements import Agreement as Agreement
from penstock.guard.agreements import AgreementMode as AgreementMode
from penstock.guard.agreements import Agreements as Agreements
from penstock.guard.capabilities import CapabilityAuthority as CapabilityAuthority
from penstock.guard.decision import Authority as Authority
from penstock.guard.decision import Decision as Decision
from penstock.guard.decision import DecisionProblem as DecisionProblem
from penstock.guard.decision import Effect as Effect
from penstock.guard.decision import EventRequest as EventRequest
from penstock.guard.decision import NetworkRequest as NetworkRequest
from penstock.guard.decision import Request as Request
from penstock.guard.decision import Ruling as Ruling
from penstock.guard.decision import decide as decide
from penstock.guard.decision_log import DecisionRecord as DecisionRecord
from penstock.guard.decision_log import EventCounts as EventCounts
from penstock.guard.decision_log import Recorded as Recorded
from penstock.guard.decision_log import Recorder as Recorder
from penstock.guard.decision_log import RevocationRecord as RevocationRecord
from penstock.guard.decision_log import Sink as Sink
from penstock.guard.enforce import Delivery as Delivery
from penstock.guard.enforce import Publication as Publication
from penstock.guard.enforce import Rules as Rules
from penstock.guard.environment import ENVIRONMENT as ENVIRONMENT
from penstock.guard.environment import PublicationRate as PublicationRate
from penstock.guard.environment import environment as environment
from penstock.guard.environment import environment_schema as environment_schema
from penstock.guard.restriction import ANYTIME as ANYTIME
from penstock.guard.restriction import NOTHING as NOTHING
from penstock.guard.restriction import Branch as Branch
from penstock.guard.restriction import Restriction as Restriction
from penstock.guard.restriction import TypeScope as TypeScope
from penstock.guard.restriction import When as When
