"""The words of a policy in the text form as they are read: one after the other, each wrong one told with its place."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from penstock.errors import LimitError, MalformedError
from penstock.model.limits import Limits
from penstock.policy.text_names import KEYWORDS
from penstock.policy.text_tokens import (
    COMMENT,
    END,
    NAME,
    SIGN,
    TEXT,
    PolicyTextError,
    Token,
    problem,
    tokens,
    unquoted,
)


class Words:
    """The words of a text, one after the other. Everything that is wrong is told with its place."""

    def __init__(self, text: str, limits: Limits) -> None:
        self.text = text
        self.limits = limits
        self._tokens = [one for one in tokens(text, limits=limits) if one.kind != COMMENT]
        self._next = 0

    @property
    def token(self) -> Token:
        """The next one."""
        return self._tokens[self._next]

    def take(self) -> Token:
        """Go on by one, and return it."""
        found = self.token
        self._next += found.kind != END
        return found

    def sees(self, *words: str) -> bool:
        """Say whether one of some words or signs comes next."""
        return self.token.kind in (NAME, SIGN) and self.token.text in words

    def before(self, sign: str) -> bool:
        """Say whether a sign comes after the next word."""
        following = self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        return following.kind == SIGN and following.text == sign

    def taken(self, *words: str) -> bool:
        """Take one of some words, where it comes next."""
        found = self.sees(*words)
        if found:
            self.take()
        return found

    def expect(self, word: str) -> Token:
        """Take a word or a sign that must come next."""
        if not self.sees(word):
            self.wrong(f"`{word}`")
        return self.take()

    def wrong(self, wanted: str) -> NoReturn:
        """Raise that something else is wanted here."""
        found = f"`{self.token.text[:80]}`" if self.token.kind != END else "the end"
        raise problem("xacml.syntax", f"expected {wanted}, found {found}", self.text, self.token.at)

    def quoted(self, what: str = "a text in quotes") -> str:
        """Take a text in quotes."""
        if self.token.kind != TEXT:
            self.wrong(what)
        return unquoted(self.take(), self.text)

    def name(self, what: str) -> str:
        """Take a name, which is no keyword."""
        if self.token.kind != NAME or self.token.text in KEYWORDS:
            self.wrong(what)
        return self.take().text

    def id(self, what: str) -> str:
        """Take a name, or any id in quotes."""
        return self.quoted() if self.token.kind == TEXT else self.name(what)

    @contextmanager
    def at(self, position: int) -> Iterator[None]:
        """Say of what is found to be wrong where it stands."""
        try:
            yield
        except PolicyTextError:
            raise
        except MalformedError as error:
            if isinstance(error, LimitError):
                raise
            raise problem(error.code, error.message, self.text, position, error.hint) from None

    def check_depth(self, depth: int) -> None:
        """Check how deep something is nested. Raises `LimitError` (`xacml.limit`)."""
        if depth > self.limits.policy_depth:
            raise LimitError("xacml.limit", f"it is nested more than {self.limits.policy_depth} deep")
