"""The options of `penstock.jetstream`: read once, checked, and without a secret in them.

Spark shows options in plans, its UI and its logs. So secrets come as paths of files that driver and executors can
read; an address with a password in it and options that would carry a secret are refused before Spark sees more of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import FailedError, MalformedError, did_you_mean
from penstock.fabric.nats_login import AddressError, NatsLogin, SecretError, UnreadableError, address

COLUMNS: Final = ("subject", "sequence", "time", "id", "headers", "payload")

_SECRETS: Final = frozenset({"password", "token", "user", "nkeyseed", "seed", "jwt", "secret"})
# Spark hands its own options to a source or sink together with ours.
_OF_SPARK: Final = frozenset({"path", "checkpointlocation", "queryname", "outputmode", "triggerinterval"})
_KNOWN: Final = frozenset(
    {
        *("url", "stream", "subject", "credentials", "nkey", "tokenfile", "tlsca", "tlscert", "tlskey", "tlshostname"),
        *("domain", "timeout", "retries", "columns", "start", "end", "maxmessagesperbatch", "partitions"),
        *("fetchsize", "fetchbytes", "failondataloss", "writeid", "statebucket", "maxinflight"),
    }
)


@dataclass(frozen=True)
class Options:
    """The options of one reader or writer. Its `repr` does not show the paths of secrets."""

    login: NatsLogin
    stream: str
    subjects: tuple[str, ...] = ()
    domain: str = ""
    timeout: float = 5.0
    retries: int = 4
    columns: tuple[str, ...] = COLUMNS
    start: str = "earliest"
    end: str = "latest"
    max_messages: int = 0
    partitions: int = 2
    fetch_size: int = 5_000
    fetch_bytes: int = 16 * 1024 * 1024
    fail_on_data_loss: bool = True
    write_id: str = ""
    state_bucket: str = "penstock-sinks"
    max_in_flight: int = 2_000

    @property
    def api(self) -> str:
        """Return the subject prefix of the JetStream API."""
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"

    @property
    def servers(self) -> str:
        """Return the servers as messages name them."""
        return self.login.servers

    def arguments(self) -> dict[str, Any]:
        """Return the arguments to connect with. Raises `FailedError` (`jetstream.credentials`)."""
        try:
            return self.login.arguments()
        except UnreadableError as error:
            raise unreadable(error.option) from error


def unreadable(option: str) -> FailedError:
    """Return the error for a file of secrets that does not read; it names the option, not what the file holds."""
    return FailedError(
        "jetstream.credentials",
        f"the file that option `{option}` names cannot be used",
        hint="the path must exist, with the right content, on the driver and on every executor",
        option=option,
    )


def parse_options(given: Mapping[str, str]) -> Options:
    """Return the options, checked.

    Raises `MalformedError`: `jetstream.secret-in-options`, `jetstream.unknown-option`, `jetstream.missing-option`,
    `jetstream.bad-option`.
    """
    text = {key.lower(): str(value).strip() for key, value in given.items()}
    for key in text:
        if key in _SECRETS:
            raise _secret(f"option `{key}` would carry a secret, which Spark shows in plans")
        if key not in _KNOWN and key not in _OF_SPARK:
            raise MalformedError(
                "jetstream.unknown-option",
                f"there is no option `{key}`",
                hint=did_you_mean(key, _KNOWN, f"known: {', '.join(sorted(_KNOWN))}"),
            )
    for key in ("url", "stream"):
        if not text.get(key):
            raise MalformedError("jetstream.missing-option", f"option `{key}` is needed", option=key)
    stream = text["stream"]
    if any(c in " .*>/\\" or not c.isprintable() for c in stream):
        raise _bad("stream", "a stream's name has no space, dot, star, `>` or slash")
    return Options(
        login=_login(text),
        stream=stream,
        subjects=tuple(_list(text.get("subject", ""))),
        domain=text.get("domain", ""),
        timeout=_seconds(text, "timeout", Options.timeout),
        retries=_whole(text, "retries", Options.retries, least=0),
        columns=_columns(text.get("columns", "")),
        start=_position(text, "start", "earliest"),
        end=_position(text, "end", "latest"),
        max_messages=_whole(text, "maxmessagesperbatch", Options.max_messages, least=0),
        partitions=_whole(text, "partitions", Options.partitions),
        fetch_size=_whole(text, "fetchsize", Options.fetch_size),
        fetch_bytes=_whole(text, "fetchbytes", Options.fetch_bytes),
        fail_on_data_loss=_truth(text, "failondataloss", default=True),
        write_id=text.get("writeid", ""),
        state_bucket=_bucket(text.get("statebucket", "") or Options.state_bucket),
        max_in_flight=_whole(text, "maxinflight", Options.max_in_flight),
    )


def _secret(message: str) -> MalformedError:
    return MalformedError(
        "jetstream.secret-in-options",
        message,
        hint="put it in a file, and give the path as `credentials`, `nkey` or `tokenFile`",
    )


def _bad(option: str, why: str) -> MalformedError:
    return MalformedError("jetstream.bad-option", f"option `{option}`: {why}", option=option)


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _login(text: Mapping[str, str]) -> NatsLogin:
    return NatsLogin(
        tuple(_url(part) for part in _list(text["url"])),
        credentials=text.get("credentials", ""),
        nkey=text.get("nkey", ""),
        token_file=text.get("tokenfile", ""),
        tls_ca=text.get("tlsca", ""),
        tls_cert=text.get("tlscert", ""),
        tls_key=text.get("tlskey", ""),
        tls_hostname=text.get("tlshostname", ""),
    )


def _url(text: str) -> str:
    try:
        return address(text)
    except SecretError as error:
        raise _secret("the address in option `url` has a user or a password in it") from error
    except AddressError as error:
        raise _bad("url", "an address is `nats://host:port` or `tls://host:port`") from error


def _whole(text: Mapping[str, str], key: str, default: int, *, least: int = 1) -> int:
    given = text.get(key)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit()) or int(given) < least:
        raise _bad(key, f"`{given}` is not a whole number of at least {least}")
    return int(given)


def _seconds(text: Mapping[str, str], key: str, default: float) -> float:
    given = text.get(key)
    if given is None:
        return default
    try:
        value = float(given)
    except ValueError as error:
        raise _bad(key, f"`{given}` is not a number of seconds") from error
    if not 0 < value < 86_400:
        raise _bad(key, f"`{given}` seconds are not more than 0 and less than a day")
    return value


def _truth(text: Mapping[str, str], key: str, *, default: bool) -> bool:
    given = text.get(key, str(default)).lower()
    if given not in ("true", "false"):
        raise _bad(key, f"`{given}` is neither true nor false")
    return given == "true"


def _position(text: Mapping[str, str], key: str, default: str) -> str:
    given = text.get(key, default).lower()
    if given not in ("earliest", "latest") and not (given.isascii() and given.isdigit()):
        raise _bad(key, f"`{given}` is neither `earliest` nor `latest` nor a stream sequence")
    return given


def _columns(text: str) -> tuple[str, ...]:
    named = _list(text.lower())
    wrong = [name for name in named if name not in COLUMNS]
    if wrong or len(set(named)) != len(named):
        raise _bad("columns", f"name some of {', '.join(COLUMNS)}, each once")
    return tuple(name for name in COLUMNS if name in named) if named else COLUMNS


def _bucket(text: str) -> str:
    if not all(c.isascii() and (c.isalnum() or c in "-_") for c in text):
        raise _bad("stateBucket", "a bucket's name has letters, digits, `-` and `_`")
    return text
