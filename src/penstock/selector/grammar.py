"""From tokens to a syntax tree: sqlglot settles precedence, and every node it builds is checked against a list.

(1) A small automaton over the tokens says whether an operand or an operator may come next, so that each mistake
    is reported where it stands, and bounds nesting before anything recurses.
(2) Parentheses are taken from the inside out. sqlglot sees one flat run of operators at a time, in which each
    operand is a number in quotes: its recursion is bounded, and no text of the user's reaches it.
(3) What it returns is turned into our own tree, node by node; any other node is refused.

This module imports sqlglot, which takes a while; `parse` imports it on first use.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final

from sqlglot import ErrorLevel
from sqlglot import expressions as sql
from sqlglot.errors import SqlglotError
from sqlglot.parser import Parser
from sqlglot.tokenizer_core import Token as SqlToken
from sqlglot.tokenizer_core import TokenType

from penstock.errors import SelectorError
from penstock.model.values import INTEGER_MAX, Kind
from penstock.selector.ast import (
    And,
    Arithmetic,
    AttributeReference,
    Between,
    Compare,
    ComparisonOperator,
    Concat,
    Condition,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Node,
    Not,
    Operator,
    Or,
    Term,
    check_size,
    flatten,
    literal,
    reserved,
    too_large,
)
from penstock.selector.like import PatternError, parse_pattern
from penstock.selector.limits import SelectorLimits

# ----------------------------------------------------------------------------------------------------------------------
# Cut the text of a selector into tokens, and refuse everything that the language does not have.
#
# This runs before the parser proper and is linear in the text. It settles what each word means, so that the parser
# never sees a name, a string or a number of the user's: keywords of other SQL dialects cannot change the meaning.


class TokenKind(Enum):
    """The role of a token in the grammar."""

    OPERAND = auto()
    OPERATOR = auto()
    WORD = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class SelectorToken:
    """A token; `text` is the operator or the keyword in capitals, `operand` is the value of an operand."""

    kind: TokenKind
    text: str
    at: int
    operand: AttributeReference | Literal | None = None


#: The one integer beyond 64 bits that may be written, directly after a minus.
MINUS_ONLY: Final = INTEGER_MAX + 1

_TOKEN: Final = re.compile(
    r"""
      (?P<space>[ \t\r\n]+)
    | (?P<comment>--|/\*)
    | (?P<string>'[^']*(?:''[^']*)*')
    | (?P<quoted>"[^"]*(?:""[^"]*)*")
    | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<word>[^\W\d]\w*)
    | (?P<operator><=|>=|<>|!=|\|\||[=<>+\-*/(),])
    """,
    re.VERBOSE,
)
_TIMESTAMP: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?([+-][0-9]{2}:[0-9]{2})?"
)
_UNSUPPORTED: Final = {
    ";": "a selector is one condition; leave the semicolon out",
    ".": "names have no qualifier; write a name that holds a dot in double quotes",
    "?": "there are no parameters; write the value as a literal",
    ":": "there are no parameters and no casts; write the value as a literal",
    "@": "there are no parameters; write the value as a literal",
    "$": "there are no parameters; write a name that holds a dollar sign in double quotes",
    "%": "the arithmetic operators are + - * /",
    "[": "there are no arrays; write other names in double quotes",
    "`": "write other names in double quotes",
    "{": "there are no templates",
}


def tokenize(text: str, limits: SelectorLimits) -> list[SelectorToken]:
    """Cut `text` into tokens, ending with an END token.

    Raises `LimitError` (`selector.limit`) and `SelectorError`: `selector.syntax`, `selector.unsupported`,
    `selector.literal`.
    """
    if len(text) > limits.selector_length:
        raise too_large("length", limits.selector_length, "split the selector")
    tokens = list(_fold_timestamps(text, _scan(text)))
    # Each node takes at most three tokens of its own (NOT BETWEEN AND), and two more for parentheses.
    if len(tokens) > 5 * limits.selector_nodes:
        raise too_large("nodes", limits.selector_nodes, "split the selector")
    return tokens


def _scan(text: str) -> Iterator[SelectorToken]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unknown_character(text, position)
        found = match.group()
        end = match.end()
        match match.lastgroup:
            case "string" | "quoted":
                yield _quoted(text, found, position)
            case "number":
                if end < len(text) and (text[end].isalnum() or text[end] in "_."):
                    raise SelectorError(
                        "selector.syntax",
                        f"`{found}` runs into what follows",
                        text=text,
                        position=position,
                        hint="numbers look like 12, 1.5 or 1e3; put a space after one",
                    )
                yield SelectorToken(TokenKind.OPERAND, found, position, _number(text, found, position))
            case "word":
                yield _word(found, position)
            case "operator":
                yield SelectorToken(TokenKind.OPERATOR, "<>" if found == "!=" else found, position)
            case "comment":
                raise SelectorError(
                    "selector.unsupported",
                    f"`{found}` starts a comment",
                    text=text,
                    position=position,
                    hint="selectors have no comments; put a space between two minus signs",
                )
            case _:
                pass
        position = end
    yield SelectorToken(TokenKind.END, "", len(text))


def _word(word: str, at: int) -> SelectorToken:
    if not reserved(word):
        return SelectorToken(TokenKind.OPERAND, word, at, AttributeReference(word, at))
    keyword = word.upper()
    match keyword:
        case "TRUE" | "FALSE":
            return SelectorToken(TokenKind.OPERAND, keyword, at, literal(keyword == "TRUE", at))
        case "NULL":
            return SelectorToken(TokenKind.OPERAND, keyword, at, literal(None, at))
        case _:
            return SelectorToken(TokenKind.WORD, keyword, at)


def _quoted(text: str, found: str, at: int) -> SelectorToken:
    mark = found[0]
    content = found[1:-1].replace(mark * 2, mark)
    _check_text(text, content, at)
    if mark == "'":
        return SelectorToken(TokenKind.OPERAND, found, at, literal(content, at))
    if not content:
        raise SelectorError(
            "selector.syntax", "a quoted name is empty", text=text, position=at, hint="strings take single quotes"
        )
    return SelectorToken(TokenKind.OPERAND, found, at, AttributeReference(content, at))


def _check_text(text: str, content: str, at: int) -> None:
    try:
        content.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SelectorError(
            "selector.literal",
            "a string holds a lone surrogate",
            text=text,
            position=at,
            hint="use whole Unicode characters",
        ) from error


def _number(text: str, found: str, at: int) -> Literal:
    if any(mark in found for mark in ".eE"):
        real = float(found)
        if real in (float("inf"), float("-inf")):
            raise literal_error(text, at, f"`{_shorten(found)}` is too large for a float")
        return literal(real, at)
    # Python refuses to convert thousands of digits, and no integer of ours has more than 19.
    digits = found.lstrip("0") or "0"
    if len(digits) > 19 or int(digits) > MINUS_ONLY:
        raise literal_error(text, at, f"`{_shorten(found)}` does not fit into 64 bits")
    return literal(int(digits), at)


def literal_error(text: str, at: int, message: str) -> SelectorError:
    """Return the error for a number that cannot be held."""
    return SelectorError(
        "selector.literal",
        message,
        text=text,
        position=at,
        hint="integers lie between -9223372036854775808 and 9223372036854775807; floats are finite doubles",
    )


def _fold_timestamps(text: str, tokens: Iterator[SelectorToken]) -> Iterator[SelectorToken]:
    """Merge the word TIMESTAMP and the string after it into one literal."""
    previous: SelectorToken | None = None
    for token in tokens:
        if previous is not None:
            if _is_string(token) and _is_bare_name(text, previous):
                if previous.text.upper() != "TIMESTAMP":
                    raise SelectorError(
                        "selector.unsupported",
                        f"`{_shorten(previous.text)}` is not a prefix of a literal",
                        text=text,
                        position=previous.at,
                        hint="literals are 'text', 12, 1.5, TRUE, FALSE, NULL and TIMESTAMP '2026-01-31 09:00:00'",
                    )
                yield _timestamp(text, previous, token)
                previous = None
                continue
            yield previous
        previous = token
    if previous is not None:
        yield previous


def _is_string(token: SelectorToken) -> bool:
    return isinstance(token.operand, Literal) and isinstance(token.operand.value, str)


def _is_bare_name(text: str, token: SelectorToken) -> bool:
    return isinstance(token.operand, AttributeReference) and text[token.at] != '"'


def _timestamp(text: str, word: SelectorToken, token: SelectorToken) -> SelectorToken:
    content = token.text[1:-1]
    try:
        moment = datetime.fromisoformat(content if _TIMESTAMP.fullmatch(content) else "")
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise SelectorError(
            "selector.literal",
            "this is not a timestamp",
            text=text,
            position=token.at,
            hint="write it as 'YYYY-MM-DD hh:mm:ss', optionally with .ffffff and an offset such as +00:00",
        ) from error
    return SelectorToken(TokenKind.OPERAND, word.text, word.at, literal(moment, word.at))


def _unknown_character(text: str, at: int) -> SelectorError:
    character = text[at]
    if character in "'\"":
        return SelectorError(
            "selector.syntax", "this quote is never closed", text=text, position=at, hint="double a quote inside quotes"
        )
    if character in _UNSUPPORTED:
        return SelectorError(
            "selector.unsupported",
            f"`{character}` is not part of the language",
            text=text,
            position=at,
            hint=_UNSUPPORTED[character],
        )
    return SelectorError(
        "selector.syntax",
        f"unexpected character U+{ord(character):04X}",
        text=text,
        position=at,
        hint="write other names in double quotes and strings in single quotes",
    )


def _shorten(found: str) -> str:
    return found if len(found) <= 40 else found[:37] + "..."


# ----------------------------------------------------------------------------------------------------------------------
# Turn sqlglot's tree into our own, node by node; a node that is not on the list is refused.


ALLOWED: Final = "after an operand: = <> < <= > >= + - * / || AND OR [NOT] BETWEEN, IN, LIKE, IS [NOT] NULL"
_COMPARISONS: Final[dict[type[sql.Expr], ComparisonOperator]] = {
    sql.EQ: ComparisonOperator.EQ,
    sql.NEQ: ComparisonOperator.NE,
    sql.LT: ComparisonOperator.LT,
    sql.LTE: ComparisonOperator.LE,
    sql.GT: ComparisonOperator.GT,
    sql.GTE: ComparisonOperator.GE,
}
_OPERATORS: Final[dict[type[sql.Expr], Operator]] = {
    sql.Add: Operator.ADD,
    sql.Sub: Operator.SUBTRACT,
    sql.Mul: Operator.MULTIPLY,
    sql.Div: Operator.DIVIDE,
}


class Converter:
    """Converts the runs of one selector; their operands are numbers that `add` gave."""

    def __init__(self, text: str, limits: SelectorLimits) -> None:
        self.text = text
        self.limits = limits
        #: what the numbers stand for: a node, or the items of an IN list
        self.operands: list[Node | tuple[Term, ...]] = []
        self.positions: list[int] = []

    def add(self, operand: Node | tuple[Term, ...], at: int) -> str:
        """Remember an operand and return its number."""
        self.operands.append(operand)
        self.positions.append(at)
        return str(len(self.operands) - 1)

    def convert(self, tree: sql.Expr, depth: int) -> Node:
        """Convert a tree that is `depth` levels below its run.

        Raises what `parse_condition` does, except `selector.syntax`.
        """
        if depth > self.limits.selector_depth:
            raise too_large("depth", self.limits.selector_depth, "put fewer operators into one expression")
        kind = type(tree)
        if kind in (sql.Column, sql.Literal):
            operand = self.operands[self._number(tree)]
            if isinstance(operand, tuple):
                raise self._refuse("a list goes with IN only", self.positions[self._number(tree)], ALLOWED)
            return operand
        if kind in (sql.And, sql.Or):
            return self._convert_junction(tree, And if kind is sql.And else Or, depth)
        if kind is sql.Not:
            operand = self.condition(self.convert(tree.this, depth + 1))
            return Not(operand, operand.at)
        if kind is sql.Neg:
            return self._convert_minus(self.convert(tree.this, depth + 1))
        if kind in (sql.Like, sql.Escape):
            return self._convert_like(tree, depth)
        if kind is sql.Is and isinstance(tree.expression, sql.Null):
            value = self._part(tree, "this", depth)
            return IsNull(value, value.at)
        if kind is sql.In:
            value = self._part(tree, "this", depth)
            return In(value, self._items(tree), value.at)
        if kind is sql.Between:
            value = self._part(tree, "this", depth)
            return Between(value, self._part(tree, "low", depth), self._part(tree, "high", depth), value.at)
        if kind in _COMPARISONS:
            left = self._part(tree, "this", depth)
            return Compare(_COMPARISONS[kind], left, self._part(tree, "expression", depth), left.at)
        if kind in _OPERATORS:
            left = self._part(tree, "this", depth)
            return Arithmetic(_OPERATORS[kind], left, self._part(tree, "expression", depth), left.at)
        if kind is sql.DPipe:
            left = self._part(tree, "this", depth)
            return Concat(left, self._part(tree, "expression", depth), left.at)
        raise self._refuse("this form is not part of the language", self._first_position(tree), ALLOWED)

    def _convert_junction(self, tree: sql.Expr, kind: type[And] | type[Or], depth: int) -> Condition:
        # The chain leans to the left and may be long: follow it in a loop.
        operands: list[Condition] = []
        wanted = type(tree)
        while type(tree) is wanted:
            operands.append(self.condition(self.convert(tree.expression, depth + 1)))
            tree = tree.this
        operands.append(self.condition(self.convert(tree, depth + 1)))
        operands.reverse()
        return flatten(kind, operands, operands[0].at)

    def _convert_minus(self, operand: Node) -> Term:
        # The sign belongs to the number, so that the smallest integer can be written.
        if isinstance(operand, Literal) and operand.kind in (Kind.INTEGER, Kind.FLOAT):
            value = operand.value
            if isinstance(value, int | float) and value >= 0:
                return literal(-value, operand.at)
        return Negate(self.term(operand), operand.at)

    def _convert_like(self, tree: sql.Expr, depth: int) -> Condition:
        escape: str | None = None
        if type(tree) is sql.Escape:
            escape = self._string(tree.expression, "ESCAPE takes one character in quotes")
            like = tree.this
        else:
            like = tree
        if type(like) is not sql.Like:
            raise self._refuse("ESCAPE goes with LIKE only", self._first_position(tree), ALLOWED)
        value = self._part(like, "this", depth)
        pattern = self._string(like.expression, "the pattern of LIKE is a string literal")
        try:
            parse_pattern(pattern, escape)
        except PatternError as error:
            raise SelectorError(
                "selector.pattern",
                str(error),
                text=self.text,
                position=self._first_position(like.expression),
                hint="for example LIKE '50!%%' ESCAPE '!' finds what starts with 50%",
            ) from error
        node = Like(value, pattern, escape, value.at)
        return Not(node, value.at) if like.args.get("negate") else node

    def _string(self, tree: sql.Expr, hint: str) -> str:
        if type(tree) is sql.Literal:
            operand = self.operands[self._number(tree)]
            if isinstance(operand, Literal) and isinstance(operand.value, str):
                return operand.value
        raise self._refuse("a string literal must stand here", self._first_position(tree), hint)

    def _items(self, tree: sql.Expr) -> tuple[Term, ...]:
        expressions = tree.args.get("expressions") or []
        if len(expressions) == 1 and type(expressions[0]) in (sql.Column, sql.Literal):
            operand = self.operands[self._number(expressions[0])]
            if isinstance(operand, tuple):
                return operand
        raise self._refuse("IN takes a list in parentheses", self._first_position(tree), ALLOWED)

    def _part(self, tree: sql.Expr, name: str, depth: int) -> Term:
        return self.term(self.convert(tree.args[name], depth + 1))

    def term(self, node: Node) -> Term:
        """Take a node as a value; conditions have none (SQL-92, 8.2 <comparison predicate>)."""
        if isinstance(node, AttributeReference | Literal | Negate | Arithmetic | Concat):
            if isinstance(node, Literal) and node.kind is Kind.INTEGER and node.value == MINUS_ONLY:
                raise literal_error(self.text, node.at, f"`{node.value}` does not fit into 64 bits")
            return node
        raise self._refuse("a condition stands where a value must", node.at, "join conditions with AND, OR and NOT")

    def condition(self, node: Node) -> Condition:
        """Take a node as a condition."""
        if isinstance(node, Negate | Arithmetic | Concat) or (
            isinstance(node, Literal) and node.kind not in (Kind.BOOLEAN, None)
        ):
            raise SelectorError(
                "selector.type",
                "a value stands where a condition must",
                text=self.text,
                position=node.at,
                hint="compare it with something, for example with = or IS NULL",
            )
        return node

    def _number(self, tree: sql.Expr) -> int:
        # The name is a number that `add` made.
        return int(tree.this if type(tree) is sql.Literal else tree.this.this)

    def _first_position(self, tree: sql.Expr) -> int:
        found = [self.positions[self._number(part)] for part in tree.find_all(sql.Column, sql.Literal)]
        return min(found, default=0)

    def _refuse(self, message: str, at: int, hint: str) -> SelectorError:
        return SelectorError("selector.unsupported", message, text=self.text, position=at, hint=hint)


# ----------------------------------------------------------------------------------------------------------------------
# From tokens to a syntax tree: sqlglot settles precedence, and every node it builds is checked against a list.


#: Signs before one operand; sqlglot recurses on each.
_PREFIXES: Final = 8

_TYPES: Final = {
    "=": TokenType.EQ,
    "<>": TokenType.NEQ,
    "<": TokenType.LT,
    "<=": TokenType.LTE,
    ">": TokenType.GT,
    ">=": TokenType.GTE,
    "+": TokenType.PLUS,
    "-": TokenType.DASH,
    "*": TokenType.STAR,
    "/": TokenType.SLASH,
    "||": TokenType.DPIPE,
    "AND": TokenType.AND,
    "OR": TokenType.OR,
    "NOT": TokenType.NOT,
    "BETWEEN": TokenType.BETWEEN,
    "IN": TokenType.IN,
    "LIKE": TokenType.LIKE,
    "ESCAPE": TokenType.ESCAPE,
    "IS": TokenType.IS,
}
_OPERAND: Final = "an attribute, a literal or a parenthesis"


@dataclass(slots=True)
class _Group:
    """The content between two parentheses: finished items, and the run being read."""

    opened: int
    items: bool
    tokens: list[SqlToken] = field(default_factory=list)
    finished: list[Term] = field(default_factory=list)
    prefixes: int = 0


def parse_condition(text: str, limits: SelectorLimits) -> Condition:
    """Parse a selector into its tree.

    Raises `LimitError` (`selector.limit`) and `SelectorError`: `selector.syntax`, `selector.unsupported`,
    `selector.literal`, `selector.pattern`, and `selector.type` where a value stands in place of a condition.
    """
    reader = _Reader(text, tokenize(text, limits), limits)
    condition = reader.converter.condition(reader.read())
    check_size(condition, limits)
    return condition


class _Reader:
    """One pass over the tokens."""

    def __init__(self, text: str, tokens: list[SelectorToken], limits: SelectorLimits) -> None:
        self.text = text
        self.tokens = tokens
        self.limits = limits
        self.index = 0
        self.converter = Converter(text, limits)
        self.parser = Parser(error_level=ErrorLevel.IMMEDIATE)

    # --- (1) what may come next ---------------------------------------------------------------------------------

    def read(self) -> Node:
        """Read all tokens and return the tree of the whole."""
        stack = [_Group(0, items=False)]
        wants_operand = True
        while True:
            token = self.tokens[self.index]
            self.index += 1
            group = stack[-1]
            if token.kind is TokenKind.END:
                if len(stack) > 1:
                    raise self.fail("this parenthesis is never closed", group.opened, "add a `)`")
                if wants_operand:
                    raise self.fail("the selector ends too early", token.at, f"what comes next is {_OPERAND}")
                return self.parse_run(group)
            if wants_operand:
                wants_operand = self.take_prefix(token, stack)
                continue
            match token.text if token.kind is not TokenKind.OPERAND else "":
                case ")" if len(stack) > 1:
                    stack.pop()
                    self.close(group, stack[-1])
                case "," if group.items:
                    group.finished.append(self.converter.term(self.parse_run(group)))
                    group.tokens = []
                    wants_operand = True
                case _:
                    wants_operand = self.take_infix(token, stack)

    def take_prefix(self, token: SelectorToken, stack: list[_Group]) -> bool:
        """Read where an operand must come; say whether one must still come."""
        group = stack[-1]
        if token.operand is not None:
            self.add_operand(group, token.operand, token.at)
            return False
        match token.text:
            case "(":
                self.open(stack, token.at, items=False)
            case "-" | "NOT":
                group.prefixes += 1
                if group.prefixes > _PREFIXES:
                    raise too_large("prefixes", _PREFIXES, "NOT NOT x is x, and - - x is x")
                self.add_operator(group, token)
            case "CASE" | "CAST" | "EXISTS" | "SELECT":
                raise self.refuse(f"{token.text} is not part of the language", token.at, ALLOWED)
            case _:
                raise self.fail(f"`{token.text}` stands where an operand must", token.at, f"write {_OPERAND}")
        return True

    def take_infix(self, token: SelectorToken, stack: list[_Group]) -> bool:
        """Read where an operator must come; say whether an operand must follow."""
        group = stack[-1]
        match token.text if token.kind is not TokenKind.OPERAND else "":
            case "(":
                before = self.tokens[self.index - 2]
                if isinstance(before.operand, AttributeReference):
                    raise self.refuse("there are no functions", before.at, ALLOWED)
                raise self.fail("`(` stands where an operator must", token.at, ALLOWED)
            case "NOT":
                self.add_operator(group, token)
                token = self.next_word(("BETWEEN", "IN", "LIKE"), "after an operand NOT goes with BETWEEN, IN or LIKE")
                return self.take_infix(token, stack)
            case "IS":
                self.add_operator(group, token)
                self.take_null(group)
                return False
            case "IN":
                self.add_operator(group, token)
                token = self.next_word(("(",), "IN takes a list in parentheses")
                self.open(stack, token.at, items=True)
                return True
            case "ESCAPE" | "BETWEEN" | "LIKE" | "AND" | "OR":
                self.add_operator(group, token)
                return True
            case "=" | "<>" | "<" | "<=" | ">" | ">=" | "+" | "-" | "*" | "/" | "||":
                self.add_operator(group, token)
                return True
            case ")" | ",":
                raise self.fail(f"this `{token.text}` has no opening parenthesis", token.at, "leave it out")
            case _:
                raise self.fail("an operator is missing here", token.at, ALLOWED)

    def take_null(self, group: _Group) -> None:
        token = self.tokens[self.index]
        if token.text == "NOT":
            self.index += 1
            self.add_operator(group, token)
            token = self.tokens[self.index]
        if not isinstance(token.operand, Literal) or token.operand.kind is not None:
            raise self.refuse("IS goes with NULL or NOT NULL only", token.at, "compare a boolean with = TRUE")
        self.index += 1
        group.tokens.append(_sql_token(TokenType.NULL, "NULL", token.at))

    def next_word(self, words: tuple[str, ...], hint: str) -> SelectorToken:
        token = self.tokens[self.index]
        if token.kind is TokenKind.OPERAND or token.text not in words:
            raise self.fail(f"{' or '.join(words)} must stand here", token.at, hint)
        self.index += 1
        return token

    def open(self, stack: list[_Group], at: int, *, items: bool) -> None:
        if len(stack) > self.limits.selector_depth:
            raise too_large("depth", self.limits.selector_depth, "put fewer parentheses into each other")
        stack.append(_Group(at, items))

    def close(self, group: _Group, outer: _Group) -> None:
        node = self.parse_run(group)
        if not group.items:
            self.add_operand(outer, node, group.opened)
            return
        outer.tokens.append(_sql_token(TokenType.L_PAREN, "(", group.opened))
        self.add_operand(outer, (*group.finished, self.converter.term(node)), group.opened)
        outer.tokens.append(_sql_token(TokenType.R_PAREN, ")", group.opened))

    def add_operand(self, group: _Group, operand: Node | tuple[Term, ...], at: int) -> None:
        number = self.converter.add(operand, at)
        # sqlglot wants a string after ESCAPE; elsewhere it makes no difference to it.
        is_string = isinstance(operand, Literal) and operand.kind is Kind.STRING
        group.tokens.append(_sql_token(TokenType.STRING if is_string else TokenType.IDENTIFIER, number, at))
        group.prefixes = 0

    def add_operator(self, group: _Group, token: SelectorToken) -> None:
        group.tokens.append(_sql_token(_TYPES[token.text], token.text, token.at))

    # --- (2) one flat run -----------------------------------------------------------------------------------------

    def parse_run(self, group: _Group) -> Node:
        try:
            (tree,) = self.parser.parse(group.tokens, "")
        except (SqlglotError, ValueError) as error:
            details = getattr(error, "errors", None) or [{}]
            column = details[0].get("col")
            at = column if isinstance(column, int) else group.opened
            raise SelectorError(
                "selector.syntax", "the parts do not go together here", text=self.text, position=at, hint=ALLOWED
            ) from error
        if tree is None:
            raise self.fail("there is nothing here", group.opened, f"write {_OPERAND}")
        return self.converter.convert(tree, 1)

    def fail(self, message: str, at: int, hint: str) -> SelectorError:
        return SelectorError("selector.syntax", message, text=self.text, position=at, hint=hint)

    def refuse(self, message: str, at: int, hint: str) -> SelectorError:
        return SelectorError("selector.unsupported", message, text=self.text, position=at, hint=hint)


def _sql_token(kind: TokenType, text: str, at: int) -> SqlToken:
    return SqlToken(kind, text, line=1, col=at, start=at, end=at)
