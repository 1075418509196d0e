"""Where the sources of authority meet: `Restriction`, `decide()`, and enforcement."""

from penstock.guard.capability_authority import CapabilityAuthority as CapabilityAuthority
from penstock.guard.decision import Authority as Authority
from penstock.guard.decision import Decision as Decision
from penstock.guard.decision import Effect as Effect
from penstock.guard.decision import EventRequest as EventRequest
from penstock.guard.decision import NetworkRequest as NetworkRequest
from penstock.guard.decision import Problem as Problem
from penstock.guard.decision import Request as Request
from penstock.guard.decision import Ruling as Ruling
from penstock.guard.decision import decide as decide
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
