"""Parse untrusted XML within bounds: no document type, no entities, nothing fetched.

The parser is libxml2's, by lxml. Paths are evaluated by elementpath, which has no functions that reach outside. A
request can contain paths, and even short ones can run indefinitely: their steps are counted, and regular expressions
are refused.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Final, cast

import elementpath
from elementpath import (
    AttributeNode,
    ElementNode,
    TextNode,
    XPath1Parser,
    XPath2Parser,
    XPathContext,
    XPathNode,
    get_node_tree,
)
from lxml import etree

from penstock.codec.limits import CODEC_LIMITS, POLICY_MATCHED, CodecLimits
from penstock.errors import EvaluationError, LimitError, MalformedError

Element = Any
"""An element of lxml, of which types are only stubs that say little."""

_OLD_PATHS: Final = "1999"


class _Paths(XPath2Parser):
    """XPath 2.0 with short ranges and without patterns, which could take indefinitely long on some texts."""


#: a class that elementpath makes when it is loaded
_Plain: Any = _Paths.symbol_table["to"]


class _Range(_Plain):  # type: ignore[misc]  # of which no types are known
    """Numbers from one to another."""

    def evaluate(self, context: Any = None) -> Any:
        """Return them. Raises `ElementPathError` where there are too many."""
        first, last = self.get_operands(context, cls=int)
        if first is not None and last is not None and last - first > POLICY_MATCHED:
            raise self.error("FOAR0002", "a range is too long")
        return super().evaluate(context)


for _name in ("matches", "replace", "tokenize"):
    _Paths.unregister(_name)
_Paths.symbol_table["to"] = _Range
#: parts of paths that go through a document more than once; counting would make other paths four times as slow
_COSTLY: Final = re.compile(r"[\[($]|//.*//", re.DOTALL)


class _TooLongError(BaseException):
    """A path took too many steps. No evaluator takes it for an error of its own, and goes on."""


def read_xml(data: bytes, *, limits: CodecLimits = CODEC_LIMITS) -> Element:
    """Read a document, and return its root.

    Raises `MalformedError` (`xml.malformed`, `xml.doctype`), `LimitError` (`xml.limit`).
    """
    if len(data) > limits.xml_bytes:
        raise LimitError("xml.limit", f"the document is longer than {limits.xml_bytes} bytes")
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=False, remove_pis=True,
        remove_comments=True,
    )  # fmt: skip
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        line = error.lineno or 0
        raise MalformedError("xml.malformed", f"line {line}: {error.msg or 'no XML'}", line=line) from None
    except ValueError as error:
        raise MalformedError("xml.malformed", str(error)) from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise MalformedError("xml.doctype", "the document has a document type", hint="remove the `<!DOCTYPE …>`")
    if sum(1 for _ in root.iter()) > limits.xml_nodes:
        raise LimitError("xml.limit", f"the document has more than {limits.xml_nodes} elements")
    return root


@contextmanager
def _counted(most: int) -> Iterator[None]:
    """Let no more than so many functions be called. Raises `_TooLongError`."""
    left, before = most, sys.getprofile()

    def count(*_event: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise _TooLongError

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


def tag_of(element: Element) -> tuple[str, str]:
    """Return the namespace and the name of an element."""
    name = etree.QName(element)
    return name.namespace or "", name.localname


class XmlContent:
    """A document that paths look into. Each of its nodes is one object of elementpath, and equal to itself alone."""

    def __init__(self, root: Element, limits: CodecLimits = CODEC_LIMITS) -> None:
        self._limits = limits
        # A document of its own, so that no path leaves it.
        self.root = etree.fromstring(etree.tostring(root, with_tail=False))
        self._tree = get_node_tree(self.root.getroottree())

    def select(
        self, path: str, prefixes: Sequence[tuple[str, str]], version: str, context: object | None = None
    ) -> Sequence[object]:
        """Return the nodes that a path finds, or its value. Raises `EvaluationError` (`xacml.processing`)."""
        parser = XPath1Parser if _OLD_PATHS in version else _Paths
        if len(path) > self._limits.policy_matched:
            raise EvaluationError("xacml.processing", f"path `{path[:80]}…` is too long")
        try:
            with _counted(self._limits.policy_path) if _COSTLY.search(path) else nullcontext():
                within = XPathContext(self._tree, item=cast("Any", context))
                return [*cast("Any", parser(dict(prefixes)).parse(path.strip()).select(within))]
        except _TooLongError:
            raise EvaluationError("xacml.processing", f"path `{path[:80]}` takes too many steps") from None
        except (elementpath.ElementPathError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise EvaluationError("xacml.processing", f"path `{path[:80]}` cannot be evaluated: {error}") from None

    def text(self, node: object) -> str | None:
        """Return the text of a node."""
        if isinstance(node, XPathNode):
            return node.string_value
        if isinstance(node, bool):
            return "true" if node else "false"
        return None if node is None else str(node)

    def path(self, node: object) -> str:
        """Return a path that finds just this node, whatever prefixes are known: `/*[1]/*[2]/text()[1]`."""
        if not isinstance(node, XPathNode) or node.parent is None:
            return "/"
        parent = node.parent
        kinds = ((ElementNode, "*"), (AttributeNode, "@*"), (TextNode, "text()"))
        kind, sign = next((one for one in kinds if isinstance(node, one[0])), (XPathNode, "node()"))
        siblings = cast("Any", parent).attributes if isinstance(node, AttributeNode) else cast("Any", parent).children
        place = 1 + [one for one in siblings if isinstance(one, kind)].index(node)
        return f"{self.path(parent).removesuffix('/')}/{sign}[{place}]"

    def around(self, node: object) -> Iterator[object]:
        """Yield a node and its ancestors; nothing for other values."""
        inner = node if isinstance(node, XPathNode) else None
        while inner is not None:
            yield inner
            inner = inner.parent

    def written(self) -> bytes:
        """Return the document."""
        return bytes(etree.tostring(self.root))
