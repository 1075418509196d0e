"""From tokens to a syntax tree: sqlglot settles precedence, and every node it builds is checked against a list.

(1) A small automaton over the tokens says whether an operand or an operator may come next, so that each mistake
    is reported where it stands, and bounds nesting before anything recurses.
(2) Parentheses are taken from the inside out. sqlglot sees one flat run of operators at a time, in which each
    operand is a number in quotes: its recursion is bounded, and no text of the user's reaches it.
(3) What it returns is turned into our own tree, node by node; any other node is refused.

This module imports sqlglot, which takes a while; `parse` imports it on first use.
"""

from dataclasses import dataclass, field
from typing import Final

from sqlglot import ErrorLevel
from sqlglot.errors import SqlglotError
from sqlglot.parser import Parser
from sqlglot.tokenizer_core import Token as SqlToken
from sqlglot.tokenizer_core import TokenType

from penstock.errors import SelectorError
from penstock.model.limits import Limits
from penstock.model.values import Kind
from penstock.selector.ast import Attribute, Condition, Literal, Node, Term, check_size, too_large
from penstock.selector.convert import ALLOWED, Converter
from penstock.selector.lexer import Token, TokenKind, tokenize

#: Signs before one operand; sqlglot recurses on each, and nobody writes more.
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
    """What stands between two parentheses: finished items, and the run being read."""

    opened: int
    items: bool
    tokens: list[SqlToken] = field(default_factory=list)
    finished: list[Term] = field(default_factory=list)
    prefixes: int = 0


def parse_condition(text: str, limits: Limits) -> Condition:
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

    def __init__(self, text: str, tokens: list[Token], limits: Limits) -> None:
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

    def take_prefix(self, token: Token, stack: list[_Group]) -> bool:
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

    def take_infix(self, token: Token, stack: list[_Group]) -> bool:
        """Read where an operator must come; say whether an operand must follow."""
        group = stack[-1]
        match token.text if token.kind is not TokenKind.OPERAND else "":
            case "(":
                before = self.tokens[self.index - 2]
                if isinstance(before.operand, Attribute):
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

    def next_word(self, words: tuple[str, ...], hint: str) -> Token:
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

    def add_operator(self, group: _Group, token: Token) -> None:
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
