"""Read policies in any form: XML, JSON, text, or Cedar, which is compiled. How a file begins determines the form."""

from dataclasses import replace
from enum import StrEnum

from penstock.errors import MalformedError, RefusedError
from penstock.policy.language.policies import Policy, PolicyReference, PolicySet, Root, check_issuers
from penstock.policy.limits import POLICY_LIMITS, PolicyLimits
from penstock.policy.syntax.cedar.compiler import compile_cedar
from penstock.policy.syntax.cedar.grammar import is_cedar
from penstock.policy.syntax.json.policies import read_json_policy
from penstock.policy.syntax.text.policies import Document, read_document, read_text_policy
from penstock.policy.syntax.xml.policies import read_policy


class PolicyForm(StrEnum):
    """A form."""

    XML = "xml"
    TEXT = "text"
    JSON = "json"
    #: read only
    CEDAR = "cedar"


def form_of(data: bytes) -> PolicyForm:
    """Return the form in which a policy is written."""
    begin = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if begin in (b"p", b"f", b"@", b"/") and is_cedar(data.decode("utf-8-sig", "replace")):
        return PolicyForm.CEDAR
    return {b"<": PolicyForm.XML, b"{": PolicyForm.JSON}.get(begin, PolicyForm.TEXT)


def text_of(data: bytes) -> str:
    """Return the text of a policy. Raises `MalformedError` (`xacml.syntax`)."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise MalformedError("xacml.syntax", "a policy must be XML, JSON, text or Cedar in UTF-8") from None


def read_root(data: bytes, *, limits: PolicyLimits = POLICY_LIMITS) -> Root:
    """Read a file of one policy or policy set.

    Raises `MalformedError` and `LimitError` (`xacml.*`, `xml.*`,
    `cedar.*`).
    """
    match form_of(data):
        case PolicyForm.XML:
            return read_policy(data, limits=limits)
        case PolicyForm.JSON:
            return read_json_policy(data, limits=limits)
        case PolicyForm.TEXT:
            return read_text_policy(text_of(data), limits=limits)
        case PolicyForm.CEDAR:
            return compile_cedar(text_of(data), limits=limits)


def read_policies(data: bytes, *, limits: PolicyLimits = POLICY_LIMITS) -> Document:
    """Read a file of policies; the text form can contain several. Raises as `read_root`."""
    if form_of(data) is PolicyForm.TEXT:
        return read_document(text_of(data), limits=limits)
    return Document("", [read_root(data, limits=limits)])


def compile_policy(data: bytes, identity: str, version: str, *, limits: PolicyLimits = POLICY_LIMITS) -> Root:
    """Compile a policy that somebody else wrote, in any form, to XACML with an identity and a version.

    Policies in it get the identity with a number, so that no two authors can use the same id. Raises as `read_root`,
    `MalformedError` (`xacml.issuer`), `RefusedError` (`policy.reference`) if it refers to other policies.
    """
    found = read_root(data, limits=limits)
    check_issuers(found)
    return replace(_identified(found, identity), version=version)


def _identified(root: Root, identity: str) -> Root:
    if isinstance(root, Policy):
        return replace(root, id=identity)
    members: list[Policy | PolicySet | PolicyReference] = []
    for number, member in enumerate(root.members, 1):
        if isinstance(member, PolicyReference):
            hint = "put the policy into the set"
            raise RefusedError("policy.reference", f"the policy refers to `{member.id[:120]}`", hint=hint)
        members.append(_identified(member, f"{identity}.{number}"))
    return replace(root, id=identity, members=tuple(members))
