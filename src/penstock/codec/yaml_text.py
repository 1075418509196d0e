"""YAML as people write it by hand, read as plain data: mappings, lists, text, numbers, true, false and null.

The parser is PyYAML's. Its events are interpreted here, so that nothing but these values is constructed. Aliases (which
can make a short text endless), tags, second documents and duplicate keys are refused. Only `true`, `false`, `null` and
decimal numbers are not text: `no`, `on`, `0777` and `2026-01-31` are text. Keys are always text. Mappings know the
lines of their keys, for error messages.

`read_yaml` gives back the values that `write_yaml` wrote.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from penstock.codec.limits import CODEC_LIMITS, CodecLimits
from penstock.errors import LimitError, MalformedError

Plain: TypeAlias = "dict[str, Plain] | list[Plain] | str | int | float | bool | None"

Written: TypeAlias = "Mapping[str, Written] | Sequence[Written] | str | int | float | bool | None"
"""The values that can be written: the same as `Plain`, read-only."""

#: libyaml's parser is ten times as fast, and not everywhere
LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,18})", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)\.[0-9]+([eE][-+]?[0-9]{1,3})?", re.ASCII)
_WIDTH: Final = 120
_NULL: Final = "tag:yaml.org,2002:null"
#: from which depth on mappings are written in one line
_DEEP: Final = 2
_WORDS: Final[dict[str, Plain]] = {"": None, "~": None, "null": None, "true": True, "false": False}


def read_yaml(text: str, *, limits: CodecLimits = CODEC_LIMITS) -> Plain:
    """Read one document.

    >>> read_yaml("{who: [P1, 'true'], when: {from: 2026-01-31, days: 3, strict: true}}")
    {'who': ['P1', 'true'], 'when': {'from': '2026-01-31', 'days': 3, 'strict': True}}

    Raises `MalformedError` (`yaml.malformed`, `yaml.unsupported`, `yaml.duplicate-key`), `LimitError` (`yaml.limit`).
    """
    if len(text) > limits.yaml_length:
        raise LimitError("yaml.limit", f"the text is longer than {limits.yaml_length} characters")
    try:
        return _Reader(yaml.parse(text, Loader=LOADER), limits).document()
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        problem = getattr(error, "problem", None) or "an invalid character"
        raise MalformedError("yaml.malformed", f"{where}{problem}") from None


def write_yaml(value: Written) -> str:
    """Write one document, mappings in their order; items of a list in one line each, as far as they fit.

    >>> print(write_yaml({"rules": [{"id": "r1", "since": "2026-01-31"}], "cost": "1.5e3", "note": None}), end="")
    rules:
    - {id: r1, since: '2026-01-31'}
    cost: '1.5e3'
    note:
    """
    return yaml.dump(value, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=_WIDTH)


class Lined(dict[str, "Plain"]):
    """A mapping, with the line of each of its keys."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}

    def put(self, key: str, line: int, value: "Plain") -> None:
        """Add a key with its line."""
        self[key] = value
        self.lines[key] = line


class _Reader:
    """The events of one text, and how many values they have been."""

    def __init__(self, events: Iterator[Event], limits: CodecLimits) -> None:
        self._events = events
        self._limits = limits
        self._nodes = 0

    def document(self) -> Plain:
        found: Plain = None
        documents = 0
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _unsupported(event, "there is a second document")
                found = self._node(next(self._events), 0)
            elif isinstance(event, DocumentEndEvent | StreamEndEvent):
                continue
        return found

    def _node(self, event: Event, depth: int) -> Plain:
        self._nodes += 1
        if depth > self._limits.yaml_depth or self._nodes > self._limits.yaml_nodes:
            raise LimitError("yaml.limit", "the text is nested too deep, or has too many values")
        if isinstance(event, AliasEvent) or (isinstance(event, NodeEvent) and event.anchor is not None):
            raise _unsupported(event, "there are no anchors and aliases here")
        if getattr(event, "tag", None) is not None:
            raise _unsupported(event, "there are no tags here")
        if isinstance(event, ScalarEvent):
            return _scalar(event)
        if isinstance(event, SequenceStartEvent):
            return [self._node(item, depth + 1) for item in self._until_end()]
        if isinstance(event, MappingStartEvent):
            return self._mapping(depth)
        raise _unsupported(event, "there is something else than a value")

    def _mapping(self, depth: int) -> dict[str, Plain]:
        found = Lined()
        for event in self._until_end():
            if not isinstance(event, ScalarEvent) or event.anchor is not None or event.tag is not None:
                raise _unsupported(event, "a key is plain text")
            if event.value in found:
                raise MalformedError("yaml.duplicate-key", f"{_where(event)}: a key occurs twice in a mapping")
            line = 0 if event.start_mark is None else event.start_mark.line + 1
            found.put(event.value, line, self._node(next(self._events), depth + 1))
        return found

    def _until_end(self) -> Iterator[Event]:
        for event in self._events:
            if isinstance(event, CollectionEndEvent):
                return
            yield event


def _scalar(event: ScalarEvent) -> Plain:
    text: str = event.value
    # A value without quotes has no style, or an empty one, depending on the parser.
    if event.style:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


class _Writer(yaml.SafeDumper):
    """Writes text so that it is read as text by the rules above, which are not those of YAML 1.1."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  # PyYAML's signature
        return True

    def represent(self, data: object) -> None:
        node = self.represent_data(data)
        _lay_out(node)
        self.serialize(node)


def _lay_out(node: yaml.Node, depth: int = 0, *, within: bool = False) -> int:
    """Decide what to write in one line: lists of plain values, mappings within lists, or deep. Return the length."""
    if isinstance(node, yaml.SequenceNode):
        length = sum(_lay_out(item, depth + 1, within=True) + 2 for item in node.value)
        plain = all(isinstance(item, yaml.ScalarNode) for item in node.value)
        node.flow_style = (plain or within) and length < _WIDTH
        return length
    if isinstance(node, yaml.MappingNode):
        inner = within or depth >= _DEEP
        length = sum(len(key.value) + _lay_out(value, depth + 1, within=inner) + 4 for key, value in node.value)
        node.flow_style = within and length < _WIDTH
        for _, value in () if node.flow_style else node.value:
            if value.tag == _NULL:
                value.value = ""
        return length
    return len(node.value) + 2


def _write_text(writer: _Writer, text: str) -> yaml.ScalarNode:
    # Characters that do not print are escaped: some of them would be read as the end of a line.
    style = None if text.isprintable() else '"'
    if text in _WORDS or _INTEGER.fullmatch(text) or _FLOAT.fullmatch(text):
        style = "'"
    return writer.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Writer.add_representer(str, _write_text)


def _where(event: Event) -> str:
    return "somewhere" if event.start_mark is None else f"line {event.start_mark.line + 1}"


def _unsupported(event: Event, message: str) -> MalformedError:
    return MalformedError(
        "yaml.unsupported", f"{_where(event)}: {message}", hint="write mappings, lists and plain values, in full"
    )
