"""The forms in which policies are written: XML, JSON and text. Which one it is, the first character tells."""

from enum import StrEnum

from penstock.errors import MalformedError
from penstock.policy.json_policies import read_json_policy
from penstock.policy.text_reading import Document, read_document
from penstock.policy.xml_policies import read_policy


class Form(StrEnum):
    """A form."""

    XML = "xml"
    JSON = "json"
    TEXT = "text"


def form_of(data: bytes) -> Form:
    """Return the form in which a policy is written."""
    return {b"<": Form.XML, b"{": Form.JSON}.get(data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1], Form.TEXT)


def text_of(data: bytes) -> str:
    """Return the text of a policy. Raises `MalformedError` (`xacml.syntax`)."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise MalformedError("xacml.syntax", "a policy is XML, JSON, or a text in UTF-8") from None


def read_policies(data: bytes) -> Document:
    """Read a file of policies: of the first it is about, and of those that a text has after it.

    Raises `MalformedError` and `LimitError` (`xacml.*`).
    """
    match form_of(data):
        case Form.XML:
            return Document("", [read_policy(data)])
        case Form.JSON:
            return Document("", [read_json_policy(data)])
        case Form.TEXT:
            return read_document(text_of(data))
