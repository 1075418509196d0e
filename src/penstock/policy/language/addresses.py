"""Names and addresses as XACML has them: of mailboxes, of directories (X.500), of hosts and of networks.

Each compares as it is meant, and is written as it was read (A.3.9).
"""

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import MalformedError

_LONGEST_HOST: Final = 255
_LAST_PORT: Final = 65_535
#: of a mailbox's host: parts with dots between them, none of them empty
_DOMAIN: Final = r"[^@.\s]+(?:\.[^@.\s]+)*"
_MAIL: Final = re.compile(rf"[^@\s]+@{_DOMAIN}")
_MAIL_PATTERN: Final = re.compile(rf"(?:[^@\s]+@|\.)?{_DOMAIN}")
_PORTS: Final = re.compile(r"([0-9]{1,5})?(-)?([0-9]{1,5})?", re.ASCII)
_HOST: Final = re.compile(
    r"(?:\*|(?:\*\.)?[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*)\.?",
    re.ASCII,
)
_ESCAPED: Final = re.compile(r"\\([0-9A-Fa-f]{2})|\\(.)")


@dataclass(frozen=True, slots=True)
class Mailbox:
    """An `rfc822Name`: who, as it is written, and at which host, in small letters."""

    local: str
    host: str
    text: str = field(compare=False)

    def __str__(self) -> str:
        return self.text


def read_mailbox(text: str) -> Mailbox:
    """Read an `rfc822Name`. Raises `MalformedError` (`xacml.value`)."""
    if not _MAIL.fullmatch(text):
        raise MalformedError("xacml.value", f"`{text[:80]}` is not a rfc822Name")
    local, _, host = text.partition("@")
    return Mailbox(local, host.lower(), text)


def check_mailbox_pattern(pattern: str) -> None:
    """Check that a pattern can match a mailbox. Raises `MalformedError` (`xacml.value`)."""
    if not _MAIL_PATTERN.fullmatch(pattern):
        raise MalformedError("xacml.value", f"`{pattern[:80]}` is not an rfc822Name, a domain, or a dot and a domain")


def mailbox_matches(pattern: str, mailbox: Mailbox) -> bool:
    """Say whether a mailbox matches a pattern (A.3.14). Raises `MalformedError` (`xacml.value`) for no pattern.

    `ann@sun.com` is that mailbox, `sun.com` any at that host, and `.sun.com` any at that host or at one below it.
    """
    check_mailbox_pattern(pattern)
    if "@" in pattern:
        return read_mailbox(pattern) == mailbox
    domain = pattern.lower().removeprefix(".")
    below = pattern.startswith(".") and mailbox.host.endswith(f".{domain}")
    return below or mailbox.host == domain


@dataclass(frozen=True, slots=True)
class DirectoryName:
    """An `x500Name`: its relative names from the most particular on, as they compare."""

    parts: tuple[frozenset[tuple[str, str]], ...]
    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DirectoryName) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __str__(self) -> str:
        return self.text

    def check_parts(self) -> None:
        """Check that it has parts, by which other names end. Raises `MalformedError` (`xacml.value`)."""
        if not self.parts:
            raise MalformedError("xacml.value", "an x500Name without parts matches no names")

    def ends(self, other: "DirectoryName") -> bool:
        """Say whether it is how another name ends. Raises `MalformedError` (`xacml.value`) if it has no parts."""
        self.check_parts()
        return other.parts[-len(self.parts) :] == self.parts


def read_directory_name(text: str) -> DirectoryName:
    """Read an `x500Name` as RFC 4514 writes it. Raises `MalformedError` (`xacml.value`)."""
    parts = _split(text, ",;") if text.strip() else []
    return DirectoryName(tuple(_relative(part, text) for part in parts), text)


def _relative(part: str, whole: str) -> frozenset[tuple[str, str]]:
    found = set()
    for pair in _split(part, "+"):
        kind, sign, value = pair.partition("=")
        kind = kind.strip().lower()
        if not sign or not kind:
            raise MalformedError("xacml.value", f"`{whole[:80]}` is not a x500Name")
        found.add((kind.removeprefix("oid."), " ".join(_unescape(value.strip()).lower().split())))
    return frozenset(found)


def _split(text: str, at: str) -> list[str]:
    """Split where separators are neither quoted nor escaped."""
    parts, begun, quoted, escaped = [], 0, False, False
    for place, letter in enumerate(text):
        if escaped:
            escaped = False
        elif letter == "\\":
            escaped = True
        elif letter == '"':
            quoted = not quoted
        elif letter in at and not quoted:
            parts.append(text[begun:place])
            begun = place + 1
    return [*parts, text[begun:]]


def _unescape(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    octets = b"".join(
        bytes.fromhex(found[1]) if found[1] else (found[2] or found[0]).encode("utf-8", "surrogatepass")
        for found in re.finditer(rf"{_ESCAPED.pattern}|[^\\]|\\", value, re.DOTALL)
    )
    return octets.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Ports:
    """A range of ports, open at either end; all of them where both are missing."""

    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class NetworkAddress:
    """An `ipAddress`: an address, perhaps a mask, perhaps ports."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    mask: ipaddress.IPv4Address | ipaddress.IPv6Address | None
    ports: Ports
    text: str = field(compare=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class HostName:
    """A `dnsName`: a host, or with a star all below a domain, and perhaps ports."""

    host: str
    ports: Ports
    text: str = field(compare=False)

    def __str__(self) -> str:
        return self.text


def read_network_address(text: str) -> NetworkAddress:
    """Read an `ipAddress`. Raises `MalformedError` (`xacml.value`)."""
    pattern = (
        r"\[([^\]]*)\](?:/\[([^\]]*)\])?(?::(.*))?" if text.startswith("[") else r"([^/:]*)(?:/([^:]*))?(?::(.*))?"
    )
    found = re.fullmatch(pattern, text)
    if found is None:
        raise MalformedError("xacml.value", f"`{text[:80]}` is not an ipAddress")
    kind = ipaddress.IPv6Address if text.startswith("[") else ipaddress.IPv4Address
    try:
        return NetworkAddress(kind(found[1]), None if found[2] is None else kind(found[2]), _ports(found[3]), text)
    except ValueError:
        raise MalformedError("xacml.value", f"`{text[:80]}` is not an ipAddress") from None


def read_host_name(text: str) -> HostName:
    """Read a `dnsName`. Raises `MalformedError` (`xacml.value`)."""
    host, sign, ports = text.partition(":")
    if len(host) > _LONGEST_HOST or not _HOST.fullmatch(host):
        raise MalformedError("xacml.value", f"`{text[:80]}` is not a dnsName")
    try:
        return HostName(host.lower(), _ports(ports if sign else None), text)
    except ValueError:
        raise MalformedError("xacml.value", f"`{text[:80]}` is not a dnsName") from None


def _ports(text: str | None) -> Ports:
    if text is None:
        return Ports()
    found = _PORTS.fullmatch(text)
    if found is None or not (found[1] or found[3]):
        raise ValueError
    first, last = (None if part is None else int(part) for part in (found[1], found[3]))
    if not found[2]:
        last = first
    if any(port is not None and port > _LAST_PORT for port in (first, last)):
        raise ValueError
    return Ports(first, last)
