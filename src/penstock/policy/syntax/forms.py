"""Read policies in any form: XML, JSON or text. The first character determines the form."""

from enum import StrEnum

from penstock.errors import MalformedError
from penstock.policy.language.policies import Root
from penstock.policy.limits import POLICY_LIMITS, PolicyLimits
from penstock.policy.syntax.json.policies import read_json_policy
from penstock.policy.syntax.text.policies import Document, read_document, read_text_policy
from penstock.policy.syntax.xml.policies import read_policy


class PolicyForm(StrEnum):
    """A form."""

    XML = "xml"
    TEXT = "text"
    JSON = "json"


def form_of(data: bytes) -> PolicyForm:
    """Return the form in which a policy is written."""
    return {b"<": PolicyForm.XML, b"{": PolicyForm.JSON}.get(
        data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1], PolicyForm.TEXT
    )


def text_of(data: bytes) -> str:
    """Return the text of a policy. Raises `MalformedError` (`xacml.syntax`)."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise MalformedError("xacml.syntax", "a policy must be XML, JSON or text in UTF-8") from None


def read_root(data: bytes, *, limits: PolicyLimits = POLICY_LIMITS) -> Root:
    """Read a file of one policy or policy set. Raises `MalformedError` and `LimitError` (`xacml.*`, `xml.*`)."""
    match form_of(data):
        case PolicyForm.XML:
            return read_policy(data, limits=limits)
        case PolicyForm.JSON:
            return read_json_policy(data, limits=limits)
        case PolicyForm.TEXT:
            return read_text_policy(text_of(data), limits=limits)


def read_policies(data: bytes, *, limits: PolicyLimits = POLICY_LIMITS) -> Document:
    """Read a file of policies; the text form can contain several. Raises as `read_root`."""
    if form_of(data) is PolicyForm.TEXT:
        return read_document(text_of(data), limits=limits)
    return Document("", [read_root(data, limits=limits)])
