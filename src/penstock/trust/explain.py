"""Why a principal may, or may not: the chain, and the link that is missing.

Where there is no chain, the nearest one is looked for: the path from the root to the principal with the fewest broken
links, over all certificates, also those that are expired, cannot be passed on or give another right. Where not even
such a path exists, what is missing is a certificate, and the explanation says from whom and to whom.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from penstock.errors import RefusedError
from penstock.model.principals import Petnames, Principal
from penstock.trust.certificates import Authorisation, Certificate, Naming
from penstock.trust.credentials import Credentials
from penstock.trust.discovery import Evidence, Findings, follow
from penstock.trust.reduction import FiveTuple
from penstock.trust.subjects import Name, Subject, Threshold
from penstock.trust.tags import Tag, intersect


@dataclass(frozen=True, slots=True)
class Link:
    """One certificate of a chain, and what is wrong with it: nothing, or a code and words."""

    certificate: Certificate
    code: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer to "why": the chain that allows it, or the nearest one with its broken links.

    `missing` says in words what would have to be added where no chain of certificates leads to the principal.
    """

    allowed: bool
    root: Principal
    principal: Principal
    links: tuple[Link, ...] = ()
    missing: str = ""

    def lines(self, names: Petnames | None = None) -> Iterator[str]:
        """Yield the explanation for people, one certificate a line."""
        show = (names or Petnames()).show
        if self.allowed and not self.links:
            yield f"{show(self.principal)} is the owner"
        for link in self.links:
            statement = link.certificate.statement
            what = (
                f"names {statement.name.decode(errors='replace')!r}" if isinstance(statement, Naming) else "authorises"
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
            **({"missing": self.missing} if self.missing else {}),
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
class Question:
    """May this principal, by the word of this root, do this, on this evidence?"""

    credentials: Credentials
    evidence: Evidence
    root: Principal
    principal: Principal
    request: Tag

    def findings(self) -> Findings:
        """Return what `discover` finds."""
        return follow(self.evidence, self.root, self.principal, self.request)


def explain(question: Question) -> Explanation:
    """Explain the answer: the best chain, or the nearest one."""
    findings = question.findings()
    if findings.grants:
        return explain_grant(question, findings.grants[0])
    return _Nearest(question).explanation()


def explain_grant(question: Question, grant: FiveTuple) -> Explanation:
    """Explain one of the grants that were found."""
    by_id = {certificate.id: certificate for certificate in question.credentials}
    links = tuple(Link(by_id[credential]) for credential in grant.because)
    return Explanation(True, question.root, question.principal, links)


def refusal(code: str, what: str, question: Question) -> RefusedError:
    """Return the error that says what is missing."""
    explanation = explain(question)
    broken = [link for link in explanation.links if link.code]
    reason = explanation.missing or "the right that was found is narrower"
    if broken:
        statement = broken[0].certificate.statement
        whose = f"{statement.issuer.short} for {describe_subject(statement.subject, None)}"
        reason = f"the certificate of {whose} {broken[0].problem}"
    return RefusedError(
        code,
        f"{question.principal.short} may not {what}: {reason}",
        hint="`penstock explain` shows the whole chain",
        root=question.root,
        principal=question.principal,
        **({"certificate": broken[0].certificate.id, "cause": broken[0].code} if broken else {}),
    )


_Node = Principal | Name


@dataclass(slots=True)
class _Edge:
    to: _Node
    certificate: Certificate | None
    code: str = ""
    problem: str = ""


@dataclass(slots=True)
class _Nearest:
    """The path with the fewest broken links, by breadth first search over links of cost 0 and 1."""

    question: Question
    edges: dict[_Node, list[_Edge]] = field(default_factory=dict)

    def explanation(self) -> Explanation:
        unusable = {item.certificate.id: item for item in self.question.evidence.unusable}
        quorums = self.question.evidence.quorums
        for certificate in self.question.credentials:
            statement = certificate.statement
            code, problem = "", ""
            if (item := unusable.get(certificate.id)) is not None:
                code, problem = item.code, item.why
            if isinstance(statement, Naming):
                source: _Node = Name(statement.issuer, (statement.name,))
            else:
                source = statement.issuer
                if not code:
                    code, problem = self._fault(statement)
            for node in _nodes(statement.subject, quorums):
                self.edges.setdefault(source, []).append(_Edge(node, certificate, code, problem))
        for quorum, threshold in quorums.items():
            members = [node for member in threshold.subjects for node in _nodes(member, quorums)]
            self.edges.setdefault(quorum, []).extend(_Edge(node, None) for node in members)
        path = self._search()
        if path is None:
            return Explanation(False, self.question.root, self.question.principal, (), self._gap())
        links = tuple(self._judge(path))
        missing = "" if any(link.code for link in links) else self._short_quorum()
        return Explanation(False, self.question.root, self.question.principal, links, missing)

    def _fault(self, statement: Authorisation) -> tuple[str, str]:
        if intersect(statement.tag, self.question.request) is None:
            return "chain.no-authority", "gives no right to what was asked"
        if not statement.propagate and statement.subject != self.question.principal:
            return "chain.no-propagate", "may not be passed on"
        return "", ""

    def _search(self) -> list[_Edge] | None:
        best: dict[_Node, tuple[int, list[_Edge]]] = {self.question.root: (0, [])}
        pending: deque[_Node] = deque([self.question.root])
        while pending:
            node = pending.popleft()
            cost, path = best[node]
            for edge in self.edges.get(node, ()):
                total = cost + bool(edge.code)
                if edge.to not in best or total < best[edge.to][0]:
                    best[edge.to] = (total, [*path, edge])
                    if edge.code:
                        pending.append(edge.to)
                    else:
                        pending.appendleft(edge.to)
        found = best.get(self.question.principal)
        return None if found is None else found[1]

    def _judge(self, path: Iterable[_Edge]) -> Iterator[Link]:
        tag: Tag | None = self.question.request
        for edge in path:
            if edge.certificate is None:
                continue
            code, problem = edge.code, edge.problem
            statement = edge.certificate.statement
            if not code and tag is not None and isinstance(statement, Authorisation):
                tag = intersect(tag, statement.tag)
                if tag is None:
                    code, problem = "chain.no-authority", "has no right in common with those above it"
            yield Link(edge.certificate, code, problem)

    def _short_quorum(self) -> str:
        return "each link holds, but fewer members than the threshold asks for pass the right on, or their dates differ"

    def _gap(self) -> str:
        """Say between whom a certificate is missing."""
        reached = self._reach(self.question.root, self.edges)
        backwards: dict[_Node, list[_Edge]] = {}
        for source, edges in self.edges.items():
            for edge in edges:
                backwards.setdefault(edge.to, []).append(_Edge(source, edge.certificate))
        wanted = self._reach(self.question.principal, backwards)
        left = ", ".join(sorted(_node_text(node) for node in reached)[:5])
        right = ", ".join(sorted(_node_text(node) for node in wanted)[:5])
        return f"no certificate leads from {{{left}}} to {{{right}}}"

    @staticmethod
    def _reach(start: _Node, edges: dict[_Node, list[_Edge]]) -> set[_Node]:
        seen: set[_Node] = {start}
        pending: list[_Node] = [start]
        while pending:
            for edge in edges.get(pending.pop(), ()):
                if edge.to not in seen:
                    seen.add(edge.to)
                    pending.append(edge.to)
        return seen


def _nodes(subject: Subject, quorums: dict[Principal, Threshold]) -> Iterator[_Node]:
    """Yield where a certificate leads; a chained name is followed from its first part."""
    if isinstance(subject, Threshold):
        quorums.setdefault(subject.principal, subject)
        yield subject.principal
    elif isinstance(subject, Name):
        yield Name(subject.principal, subject.names[:1])
    else:
        yield subject


def _node_text(node: _Node) -> str:
    return node.short if isinstance(node, Principal) else str(node)
