"""Certificates, tags, reduction, signed event types, validity: who may do what, and why.

Certificates:

- `certificates` issues, reads and verifies certificates. Their subjects are keys, names or thresholds.
- `tags` has the sets of requests that certificates grant, and intersects them.
- `tag_patterns` has the patterns of tags: prefixes, globs and ranges.
- `capabilities` expresses Penstock's rights as tags, those on topics too.
- `validity` has dates and on-line tests.
- `credentials` reads bags of certificates, in any order.
- `caches` keeps the results of verification.

From certificates to rights:

- `discovery` reduces chains of certificates, and finds the rights that a bag of them gives a principal.
- `explain` says why a principal may do something, or which certificate is missing.
- `refusals` says who may not do what, and names the command that explains it.
- `redtest` reads reduction test cases in the `(red-test …)` form.

Signed statements:

- `event_types` signs, reads and verifies event types and topics.
- `policy_events` has the policy events of an owner, time-stamps and acknowledgements.
- `policy_state` computes an owner's policy from its policy events, and says which certificates are revoked.
- `profiles` signs and verifies profiles.
- `statements` has validity statements: timed CRLs and revalidations, one-time answers, revocations and heartbeats.
- `statement_book` says what these statements mean for a certificate now.
- `key_statements` has the statements of brokers and key managers about key groups.
- `signed` signs and verifies statements of any kind: policy events, profiles, key statements, time-stamps.
"""

from penstock.trust.caches import CertificateCache as CertificateCache
from penstock.trust.caches import TypeCache as TypeCache
from penstock.trust.capabilities import BROKER_RIGHTS as BROKER_RIGHTS
from penstock.trust.capabilities import BoundSelector as BoundSelector
from penstock.trust.capabilities import Right as Right
from penstock.trust.capabilities import event_tag as event_tag
from penstock.trust.capabilities import flags as flags
from penstock.trust.capabilities import network_request as network_request
from penstock.trust.capabilities import network_tag as network_tag
from penstock.trust.capabilities import type_request as type_request
from penstock.trust.certificates import Authorisation as Authorisation
from penstock.trust.certificates import Certificate as Certificate
from penstock.trust.certificates import Name as Name
from penstock.trust.certificates import NameCertificate as NameCertificate
from penstock.trust.certificates import Subject as Subject
from penstock.trust.certificates import Threshold as Threshold
from penstock.trust.certificates import UnverifiedCertificate as UnverifiedCertificate
from penstock.trust.certificates import issue as issue
from penstock.trust.certificates import verify_certificate as verify_certificate
from penstock.trust.credentials import Credentials as Credentials
from penstock.trust.credentials import UnverifiedCredentials as UnverifiedCredentials
from penstock.trust.credentials import read_credentials as read_credentials
from penstock.trust.discovery import Findings as Findings
from penstock.trust.discovery import FiveTuple as FiveTuple
from penstock.trust.discovery import FourTuple as FourTuple
from penstock.trust.discovery import discover as discover
from penstock.trust.event_types import UnverifiedType as UnverifiedType
from penstock.trust.event_types import VerifiedType as VerifiedType
from penstock.trust.event_types import read_type as read_type
from penstock.trust.event_types import sign_type as sign_type
from penstock.trust.event_types import verify_type as verify_type
from penstock.trust.explain import AuthorityQuestion as AuthorityQuestion
from penstock.trust.explain import Explanation as Explanation
from penstock.trust.explain import explain as explain
from penstock.trust.tags import Tag as Tag
from penstock.trust.tags import intersect as intersect
from penstock.trust.tags import parse_tag as parse_tag
from penstock.trust.validity import ALWAYS as ALWAYS
from penstock.trust.validity import Validity as Validity
