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

from penstock.apps.cli.shared import options
from penstock.apps.cli.shared.groups import example
from penstock.apps.cli.shared.options import JSON
from penstock.apps.cli.shared.session import say
from penstock.apps.http.bundles import load
from penstock.apps.http.journal import Journal
from penstock.apps.http.process import RunningService, ServiceConfig, tls_context
from penstock.apps.http.service import DecisionService, ServiceSettings, read_callers
from penstock.errors import MalformedError, RefusedError


@click.command()
@click.argument("bundle", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.option("--listen", default="127.0.0.1:8181", show_default=True, metavar="HOST:PORT", help="Where to listen.")
@click.option("--url", metavar="URL", help="How others reach it, for the discovery document (default: as --listen).")
@click.option("--tokens", type=click.Path(path_type=Path), metavar="FILE", help="Callers: `NAME TOKEN` in each line.")
@click.option("--anyone", is_flag=True, help="Answer whoever can reach it, though it listens beyond this machine.")
@click.option("--log", "log_file", type=click.Path(path_type=Path), metavar="FILE", help="The decision log.")
@click.option("--tls-cert", type=click.Path(path_type=Path), metavar="FILE", help="A certificate chain in PEM.")
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="Its private key in PEM.")
@click.option("--watch", type=click.FloatRange(0, 3600), default=2.0, show_default=True, metavar="SECONDS",
              help="How often to look for a changed bundle; 0 waits for SIGHUP.")  # fmt: skip
@click.option("--trust-properties", is_flag=True,
              help="Believe a question's properties before those in entities.json (default: after them).")  # fmt: skip
@options.output_option()
@example(
    """
penstock pdp serve examples/authzen-todo
penstock pdp serve bundle --listen 0.0.0.0:8443 --tokens callers.txt --tls-cert chain.pem --tls-key key.pem \\
  --url https://pdp.example.com --log decisions.jsonl
"""
)
def serve(  # noqa: PLR0913  # one argument an option
    *,
    bundle: Path,
    listen: str,
    url: str | None,
    tokens: Path | None,
    anyone: bool,
    log_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    watch: float,
    trust_properties: bool,
    output: str,
) -> None:
    """Answer questions by the policies in BUNDLE, over HTTP, until told to stop: AuthZEN 1.0 and XACML REST.

    BUNDLE is a policy, or a folder with root.xml, root.json or root.policy, policies that it refers to in any of these
    forms, and entities.json. What is in entities.json is believed before what a question says of the same entity. When
    the bundle changes, or on SIGHUP, it is read again: each question is decided by one revision as a whole, and one
    that cannot be read changes nothing. It prints a line when it is ready.
    """
    host, port = _address(listen)
    if tokens is None and not anyone and not _local(host):
        hint = "name the callers with --tokens, or say --anyone"
        raise RefusedError("pdp.open", f"whoever reaches `{host}` could ask", hint=hint)
    if (tls_cert is None) != (tls_key is None):
        raise MalformedError("cli.usage", "--tls-cert and --tls-key go together")
    tls = None if tls_cert is None or tls_key is None else tls_context(tls_cert, tls_key)
    base = f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}"
    prefix = secrets.token_hex(6)
    settings = ServiceSettings(
        url=(url or base).rstrip("/"),
        callers=None if tokens is None else read_callers(tokens),
        journal=None if log_file is None else Journal(log_file, f"urn:penstock:pdp:{prefix}"),
        prefix=prefix,
    )
    service = DecisionService(load(bundle, trust_properties=trust_properties), settings)

    def ready(taken: int) -> None:
        if url is None:
            service.settings = replace(settings, url=f"{base}:{taken}")
        if output == JSON:
            # One line: whoever started it waits for that.
            say(json.dumps({"url": f"{base}:{taken}", "revision": service.bundle.revision}))
        else:
            say(f"✓ {base}:{taken} decides by revision {service.bundle.revision}")

    async def run() -> None:
        await RunningService(service, ServiceConfig(host, port, bundle, watch, tls), _note).run(ready)

    asyncio.run(run())


def _note(line: str) -> None:
    # Whoever read the log may have left; those who are served should not notice.
    with suppress(OSError):
        click.echo(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}", err=True)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise MalformedError("cli.usage", f"`{text[:80]}` is no HOST:PORT")
    return host.strip("[]"), int(port)


def _local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
