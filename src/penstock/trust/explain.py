"""Explain why a principal may do something or not: the chain, and the missing link.

If there is no chain, the nearest one is searched: the path from the root to the principal with the fewest broken links,
over all certificates, including those that are expired, cannot be passed on or grant another right. A certificate for
another right counts as two broken links, because the explanation of an expired right should show the expired
certificate and not a valid one for something else. If there is no such path, a certificate is missing, and the
explanation names both sides of the gap.

The code of a broken link says what is wrong with that certificate (`cert.expired`, `chain.no-propagate`, …). The code
of the explanation says what is wrong between certificates: `chain.missing`; `chain.missing-name` if authority ends at a
name without members; `chain.short-quorum` if each link is valid but too few members pass their share on;
`chain.truncated` if each link is valid but discovery stopped at a bound.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import LimitError, RefusedError
from penstock.model.principals import Petnames, Principal
from penstock.trust.certificates import Authorisation, Certificate, Name, NameCertificate, Subject, Threshold
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import Evidence, Findings, FiveTuple, follow
from penstock.trust.limits import NAME_LENGTH
from penstock.trust.refusals import LackedRight
from penstock.trust.tags import Tag, intersect


@dataclass(frozen=True, slots=True)
class ChainLink:
    """One certificate of a chain, and what is wrong with it: a code and a message, or nothing."""

    certificate: Certificate
    code: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The chain that permits a request, or the nearest one with its broken links.

    If no chain of certificates leads to the principal, `missing` says what would have to be added, and `code` says it
    for programs.
    """

    allowed: bool
    root: Principal
    principal: Principal
    links: tuple[ChainLink, ...] = ()
    missing: str = ""
    code: str = ""

    def lines(self, names: Petnames | None = None) -> Iterator[str]:
        """Yield the explanation for people, one certificate a line."""
        show = (names or Petnames()).show
        if self.allowed and not self.links:
            yield f"{show(self.principal)} is the owner"
        for link in self.links:
            statement = link.certificate.statement
            what = (
                f"names {statement.name.decode(errors='replace')!r}"
                if isinstance(statement, NameCertificate)
                else "authorises"
            )
            mark = f"✗ {link.problem}" if link.code else "✓"
            subject = describe_subject(statement.subject, names)
            yield f"{show(statement.issuer)} {what} {subject}  {mark}"
        if self.missing:
            yield self.missing

    def as_dict(self) -> dict[str, object]:
        """Return the explanation as plain data."""
        return {
            "allowed": self.allowed,
            "root": str(self.root),
            "principal": str(self.principal),
            "chain": [
                {
                    "certificate": link.certificate.id,
                    "issuer": str(link.certificate.statement.issuer),
                    "subject": describe_subject(link.certificate.statement.subject, None, full=True),
                    **({"code": link.code, "problem": link.problem} if link.code else {}),
                }
                for link in self.links
            ],
            **({"code": self.code, "missing": self.missing} if self.missing else {}),
        }


def describe_subject(subject: Subject, names: Petnames | None, *, full: bool = False) -> str:
    """Return a subject in words, with the reader's own names for principals."""

    def show(principal: Principal) -> str:
        return str(principal) if full else (names or Petnames()).show(principal)

    if isinstance(subject, Principal):
        return show(subject)
    if isinstance(subject, Name):
        return f"{show(subject.principal)}'s {' '.join(repr(name.decode(errors='replace')) for name in subject.names)}"
    members = ", ".join(describe_subject(member, names, full=full) for member in subject.subjects)
    return f"{subject.k} of {{{members}}}"


@dataclass(frozen=True, slots=True)
class AuthorityQuestion:
    """Whether a principal may do something, if a root is trusted, on this evidence."""

    credentials: Credentials
    evidence: Evidence
    root: Principal
    principal: Principal
    request: Tag

    def findings(self) -> Findings:
        """Return the findings of `discover`."""
        return follow(self.evidence, self.root, self.principal, self.request)


def explain(question: AuthorityQuestion) -> Explanation:
    """Explain the answer: the best chain, or the nearest one."""
    findings = question.findings()
    if findings.grants:
        return explain_grant(question, findings.grants[0])
    return _Nearest(question, findings.truncated).explanation()


def explain_grant(question: AuthorityQuestion, grant: FiveTuple) -> Explanation:
    """Explain one of the grants that were found."""
    by_id = {certificate.id: certificate for certificate in question.credentials}
    links = tuple(ChainLink(by_id[credential]) for credential in grant.because)
    return Explanation(True, question.root, question.principal, links)


def refusal(code: str, lacked: LackedRight, question: AuthorityQuestion) -> RefusedError:
    """Return the error that says which certificate is missing."""
    explanation = explain(question)
    broken = [link for link in explanation.links if link.code]
    reason = explanation.missing or "the right that was found is narrower"
    if broken:
        statement = broken[0].certificate.statement
        whose = f"{statement.issuer.short} for {describe_subject(statement.subject, None)}"
        reason = f"the certificate of {whose} {broken[0].problem}"
    facts: dict[str, object] = {"cause": explanation.code} if explanation.code else {}
    if broken:
        facts = {"certificate": broken[0].certificate.id, "cause": broken[0].code}
    error = lacked.refuse(code, reason, root=question.root, principal=question.principal, **facts)
    error.hint = f"put the certificates that lead to it into the type's credentials; {error.hint}"
    return error


_Node = Principal | Name

#: places of the graph that are looked at; names can be chained into more of them than there are certificates
_PLACES: Final = 50_000
#: the cost of a certificate for another right; each other fault costs 1
_OTHER_RIGHT: Final = 2


@dataclass(frozen=True, slots=True)
class _Edge:
    """From one place to the next, through a certificate or, without one, from a quorum to a member."""

    to: _Node
    certificate: Certificate | None = None
    code: str = ""
    problem: str = ""
    cost: int = 0


@dataclass(frozen=True, slots=True)
class _Place:
    """A position on a path: a node, and whether the authority may be passed on again."""

    node: _Node
    passable: bool = True


@dataclass(slots=True)
class _Nearest:
    """The path with the fewest broken links."""

    question: AuthorityQuestion
    truncated: bool
    authorisations: dict[Principal, list[_Edge]] = field(default_factory=dict)
    namings: dict[tuple[Principal, bytes], list[_Edge]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unusable = {item.certificate.id: item for item in self.question.evidence.unusable}
        for certificate in self.question.credentials:
            statement = certificate.statement
            item = unusable.get(certificate.id)
            code, problem = (item.code, item.why) if item is not None else ("", "")
            to, cost = _node(statement.subject), int(bool(code))
            if isinstance(statement, NameCertificate):
                key = (statement.issuer, statement.name)
                self.namings.setdefault(key, []).append(_Edge(to, certificate, code, problem, cost))
                continue
            if _common(statement.tag, self.question.request) is None:
                cost += _OTHER_RIGHT
                if not code:
                    code, problem = "chain.no-authority", "does not grant this right"
            self.authorisations.setdefault(statement.issuer, []).append(_Edge(to, certificate, code, problem, cost))

    def explanation(self) -> Explanation:
        came_from = self._search()
        root, principal = self.question.root, self.question.principal
        ends = [place for place in (_Place(principal, True), _Place(principal, False)) if place in came_from]
        if not ends:
            code, missing = self._gap({place.node for place in came_from})
            return Explanation(False, root, principal, (), missing, code)
        # The search is by cost, so of the two the one that was reached first has the fewest broken links.
        order = list(came_from)
        links = self._judge(_path(came_from, min(ends, key=order.index)))
        if any(link.code for link in links):
            return Explanation(False, root, principal, links)
        if self.truncated:
            missing = (
                f"each link holds, but the {len(links)} certificates are more than are followed: "
                "the chain is too long, or too many others lead away from it"
            )
            return Explanation(False, root, principal, links, missing, "chain.truncated")
        missing = (
            "each link holds, but fewer members than the threshold asks for pass the right on, or their dates differ"
        )
        return Explanation(False, root, principal, links, missing, "chain.short-quorum")

    def _edges(self, node: _Node) -> Iterator[_Edge]:
        if isinstance(node, Principal):
            yield from self.authorisations.get(node, ())
            quorum = self.question.evidence.quorums.get(node)
            if quorum is not None:
                yield from (_Edge(_node(member)) for member in quorum.subjects)
            return
        local, rest = node.names[0], node.names[1:]
        for edge in self.namings.get((node.principal, local), ()):
            to = edge.to
            if rest:
                base, names = (to, rest) if isinstance(to, Principal) else (to.principal, to.names + rest)
                to = Name(base, names)
            if isinstance(to, Principal) or len(to.names) <= NAME_LENGTH:
                yield _Edge(to, edge.certificate, edge.code, edge.problem, edge.cost)

    def _search(self) -> dict[_Place, tuple[_Place, _Edge] | None]:
        """Return the places that can be reached, cheapest first, each with the last step to it."""
        start = _Place(self.question.root)
        came_from: dict[_Place, tuple[_Place, _Edge] | None] = {}
        count = 0
        pending: list[tuple[int, int, _Place, tuple[_Place, _Edge] | None]] = [(0, 0, start, None)]
        while pending and len(came_from) < _PLACES:
            cost, _, place, step = heapq.heappop(pending)
            if place in came_from:
                continue
            came_from[place] = step
            for edge in self._edges(place.node):
                statement = edge.certificate.statement if edge.certificate else None
                passable, total = place.passable, cost + edge.cost
                if isinstance(statement, Authorisation):
                    total += not place.passable
                    passable = statement.propagate
                following = _Place(edge.to, passable)
                if following not in came_from:
                    count += 1
                    heapq.heappush(pending, (total, count, following, (place, edge)))
        return came_from

    def _judge(self, path: list[_Edge]) -> tuple[ChainLink, ...]:
        """Return the links of a path, each with its fault if it has one."""
        tag: Tag | None = self.question.request
        links: list[ChainLink] = []
        granted: int | None = None
        for edge in path:
            if edge.certificate is None:
                continue
            code, problem = edge.code, edge.problem
            statement = edge.certificate.statement
            if isinstance(statement, Authorisation):
                if granted is not None and not links[granted].code:
                    above = links[granted].certificate
                    if isinstance(above.statement, Authorisation) and not above.statement.propagate:
                        links[granted] = ChainLink(above, "chain.no-propagate", "may not be passed on")
                granted = len(links)
                if not code and tag is not None:
                    tag = _common(tag, statement.tag)
                    if tag is None:
                        code, problem = "chain.no-authority", "has no right in common with those above it"
            links.append(ChainLink(edge.certificate, code, problem))
        return tuple(links)

    def _gap(self, reached: set[_Node]) -> tuple[str, str]:
        """Say between which principals a certificate is missing."""
        backwards: dict[_Node, list[_Node]] = {}
        for issuer, edges in self.authorisations.items():
            for edge in edges:
                backwards.setdefault(edge.to, []).append(issuer)
        for (issuer, name), edges in self.namings.items():
            for edge in edges:
                backwards.setdefault(edge.to, []).append(Name(issuer, (name,)))
        for principal, quorum in self.question.evidence.quorums.items():
            for member in quorum.subjects:
                backwards.setdefault(_node(member), []).append(principal)
        wanted: set[_Node] = {self.question.principal}
        pending: list[_Node] = [self.question.principal]
        while pending:
            new = [node for node in backwards.get(pending.pop(), ()) if node not in wanted]
            wanted.update(new)
            pending += new
        left = ", ".join(sorted(_node_text(node) for node in reached)[:5])
        right = ", ".join(sorted(_node_text(node) for node in wanted)[:5])
        empty = any(isinstance(node, Name) and not any(self._edges(node)) for node in reached)
        code = "chain.missing-name" if empty else "chain.missing"
        return code, f"no certificate leads from {{{left}}} to {{{right}}}"


def _common(one: Tag, other: Tag) -> Tag | None:
    """Return the intersection of two rights as discovery does: nothing if it exceeds a bound."""
    try:
        return intersect(one, other)
    except LimitError:
        return None


def _path(came_from: dict[_Place, tuple[_Place, _Edge] | None], end: _Place) -> list[_Edge]:
    path: list[_Edge] = []
    while (step := came_from[end]) is not None:
        end, edge = step
        path.append(edge)
    return path[::-1]


def _node(subject: Subject) -> _Node:
    """Return where a certificate leads; a quorum is known by its hash."""
    return subject.principal if isinstance(subject, Threshold) else subject


def _node_text(node: _Node) -> str:
    return node.short if isinstance(node, Principal) else str(node)
