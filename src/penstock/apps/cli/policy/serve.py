"""`penstock pdp serve`: the decision service, over HTTP."""

import asyncio
import ipaddress
import json
import secrets
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click

from penstock.apps.cli.shared.commands import argument, command, option, option_class, output_option, wants_data
from penstock.apps.cli.shared.terminal import show
from penstock.apps.http.bundles import load
from penstock.apps.http.journal import Journal
from penstock.apps.http.process import RunningService, ServiceConfig, tls_context
from penstock.apps.http.service import DecisionService, ServiceSettings, read_callers
from penstock.errors import MalformedError, RefusedError


@option_class
class _Serve:
    bundle: Path = argument(metavar="BUNDLE", type=click.Path(path_type=Path))
    listen: str = option(
        "--listen", default="127.0.0.1:8181", show_default=True, metavar="HOST:PORT", help="Listen here."
    )
    url: str | None = option(
        "--url", metavar="URL", help="Publish this URL in the discovery document (default: as --listen)."
    )
    tokens: Path | None = option(
        "--tokens",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Read the callers from this file: `NAME TOKEN` in each line.",
    )
    anyone: bool = option("--anyone", is_flag=True, help="Answer everybody, even if it listens beyond this machine.")
    log_file: Path | None = option(
        "--log",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write the decision log to this file (default: none).",
    )
    tls_cert: Path | None = option(
        "--tls-cert",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Serve TLS with this certificate chain in PEM.",
    )
    tls_key: Path | None = option(
        "--tls-key",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Read the certificate's private key from this file in PEM.",
    )
    watch: float = option(
        "--watch",
        type=click.FloatRange(0, 3600),
        default=2.0,
        show_default=True,
        metavar="SECONDS",
        help="Look for a changed bundle this often; 0 waits for SIGHUP.",
    )
    trust_properties: bool = option(
        "--trust-properties",
        is_flag=True,
        help="Prefer a question's properties to those in entities.json (default: the other way round).",
    )
    output: str = output_option()


@command(
    example="""
penstock pdp serve examples/authzen-todo
penstock pdp serve bundle --listen 0.0.0.0:8443 --tokens callers.txt --tls-cert chain.pem --tls-key key.pem \\
  --url https://pdp.example.com --log decisions.jsonl
"""
)
def serve(options: _Serve) -> None:
    """Answer requests by the policies in BUNDLE, over HTTP, until stopped: AuthZEN 1.0 and XACML REST.

    BUNDLE is a policy, or a folder with root.xml, root.json or root.policy, policies that it refers to in any of these
    forms, and entities.json. What entities.json says about an entity takes precedence over what a request says. The
    bundle is reloaded when it changes, or on SIGHUP: each request is decided by one revision, and a bundle that cannot
    be read changes nothing. The service prints a line when it is ready.
    """
    host, port = _address(options.listen)
    if options.tokens is None and not options.anyone and not _local(host):
        hint = "name the callers with --tokens, or say --anyone"
        raise RefusedError("pdp.open", f"whoever reaches `{host}` could ask", hint=hint)
    if (options.tls_cert is None) != (options.tls_key is None):
        raise MalformedError("cli.usage", "--tls-cert and --tls-key go together")
    tls = (
        None if options.tls_cert is None or options.tls_key is None else tls_context(options.tls_cert, options.tls_key)
    )
    base = f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}"
    prefix = secrets.token_hex(6)
    settings = ServiceSettings(
        url=(options.url or base).rstrip("/"),
        callers=None if options.tokens is None else read_callers(options.tokens),
        journal=None if options.log_file is None else Journal(options.log_file, f"urn:penstock:pdp:{prefix}"),
        prefix=prefix,
    )
    service = DecisionService(load(options.bundle, trust_properties=options.trust_properties), settings)

    as_json = wants_data()

    def ready(taken: int) -> None:
        if options.url is None:
            service.settings = replace(settings, url=f"{base}:{taken}")
        url, revision = f"{base}:{taken}", service.bundle.revision
        # One line: whoever started it waits for that.
        show([json.dumps({"url": url, "revision": revision}) if as_json else f"✓ {url} decides by revision {revision}"])

    async def run() -> None:
        await RunningService(service, ServiceConfig(host, port, options.bundle, options.watch, tls), _note).run(ready)

    asyncio.run(run())


def _note(line: str) -> None:
    # Whoever read the log may have left; those who are served should not notice.
    with suppress(OSError):
        click.echo(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}", err=True)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise MalformedError("cli.usage", f"`{text[:80]}` is not HOST:PORT")
    return host.strip("[]"), int(port)


def _local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
