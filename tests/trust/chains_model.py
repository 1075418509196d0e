"""Authority by brute force: all simple chains, one request and one set of moments at a time.

Nothing here is shared with the code under test but the matching of one request against one tag. `Oracle` says who
holds the authority for a concrete request by certificates that are valid at all given moments; names are expanded set
by set, chains are walked one by one, and a quorum's members each walk on their own.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from hypothesis import strategies as st
from tests.trust.kit import DAY, NOW, grant, name, naming, tag, who

from penstock.codec.sexp import SExp
from penstock.model.principals import Principal
from penstock.trust.certificates import Authorisation, Certificate, Name, NameCertificate, Subject, Threshold
from penstock.trust.tags import ANY, Tag, matches
from penstock.trust.validity import ALWAYS, Validity

PEOPLE = range(1, 5)
REQUESTS: list[SExp] = [(b"q", letter) for letter in (b"a", b"b", b"c")]
MOMENTS = [NOW + days * DAY for days in (-2, 0, 2, 4)]
TAGS: list[Tag] = [tag(text) for text in ("(*)", "(q)", "(q a)", "(q (* set a b))", "(q (* set b c))", "(r)")]
VALIDITIES = [
    ALWAYS,
    Validity.between(NOW - 3 * DAY, NOW + DAY),
    Validity.between(NOW - DAY, NOW + 3 * DAY),
    Validity.between(NOW - DAY, NOW + 5 * DAY),
    Validity.between(NOW + DAY, NOW + 3 * DAY),
    Validity.between(NOW - 3 * DAY, NOW - DAY),
]

Reached = set[tuple[Principal, bool]]
"""Who is reached, with or without the right to pass on."""


class Oracle:
    def __init__(
        self,
        certificates: Iterable[Certificate],
        quorums: Iterable[Threshold],
        request: SExp,
        moments: Sequence[datetime],
    ) -> None:
        usable = [c.statement for c in certificates if all(c.statement.validity.contains(m) for m in moments)]
        self.authorisations = [s for s in usable if isinstance(s, Authorisation) and matches(request, s.tag)]
        self.quorums = {quorum.principal: quorum for quorum in quorums}
        self.members: dict[tuple[Principal, bytes], set[Principal | Threshold]] = {}
        size = -1
        while size != (size := sum(map(len, self.members.values()))):
            for statement in usable:
                if isinstance(statement, NameCertificate):
                    found = self.expand(statement.subject)
                    self.members.setdefault((statement.issuer, statement.name), set()).update(found)

    def expand(self, subject: Subject) -> set[Principal | Threshold]:
        if not isinstance(subject, Name):
            return {subject}
        current: set[Principal | Threshold] = {subject.principal}
        for local in subject.names:
            current = {m for p in current if isinstance(p, Principal) for m in self.members.get((p, local), set())}
        return current

    def reach(self, subject: Subject, propagate: bool = True, seen: frozenset[Subject] = frozenset()) -> Reached:
        """Return who the authority of a subject reaches, by chains that pass nobody twice."""
        reached: Reached = set()
        for member in self.expand(subject):
            quorum = member if isinstance(member, Threshold) else self.quorums.get(member)
            if quorum is not None:
                reached.add((quorum.principal, propagate))
                if quorum not in seen:
                    reached |= self.shares(quorum, propagate, seen | {quorum})
            elif isinstance(member, Principal):
                reached.add((member, propagate))
                if propagate and member not in seen:
                    for link in self.authorisations:
                        if link.issuer == member:
                            reached |= self.reach(link.subject, link.propagate, seen | {member})
        return reached | {(principal, False) for principal, _ in reached}

    def shares(self, quorum: Threshold, propagate: bool, seen: frozenset[Subject]) -> Reached:
        tables = [self.reach(member, propagate, seen) for member in quorum.subjects]
        everyone = set().union(*tables)
        return {one for one in everyone if sum(one in table for table in tables) >= quorum.k}


@st.composite
def subjects(draw: st.DrawFn, quorums: list[Threshold]) -> Subject:
    person = draw(st.sampled_from(PEOPLE))
    kind = draw(st.sampled_from(["key", "key", "name", "chain", "quorum", "hash"]))
    if kind == "name":
        return name(person, draw(st.sampled_from("nm")))
    if kind == "chain":
        return name(person, draw(st.sampled_from("nm")), draw(st.sampled_from("nm")))
    if kind in ("quorum", "hash") and quorums:
        quorum = draw(st.sampled_from(quorums))
        return quorum if kind == "quorum" else quorum.principal
    return who(person)


@st.composite
def bags(draw: st.DrawFn) -> tuple[list[Certificate], list[Threshold]]:
    """Return a small bag with delegations, names, quorums (also within each other), dead ends and cycles.

    Most certificates are wide, lasting and may be passed on: in a bag of narrow ones nothing follows from anything.
    """
    quorums: list[Threshold] = []
    for _ in range(draw(st.integers(0, 2))):
        members = draw(st.lists(subjects(quorums), min_size=2, max_size=3))
        distinct = list({m.principal if isinstance(m, Threshold) else m: m for m in members}.values())
        quorums.append(Threshold(draw(st.integers(1, len(distinct))), tuple(distinct)))
    named = draw(st.sampled_from([0, 2, 4]))
    certificates = []
    for _ in range(draw(st.integers(1, 10))):
        issuer, subject = draw(st.sampled_from(PEOPLE)), draw(subjects(quorums))
        validity = draw(st.sampled_from(VALIDITIES)) if draw(st.booleans()) else ALWAYS
        if draw(st.integers(0, 6)) < named:
            certificates.append(naming(issuer, draw(st.sampled_from("nm")), subject, validity))
        else:
            right = draw(st.sampled_from(TAGS)) if draw(st.booleans()) else ANY
            propagate = bool(draw(st.integers(0, 3)))
            certificates.append(grant(issuer, subject, right, propagate=propagate, validity=validity))
    return certificates, quorums
