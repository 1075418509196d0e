"""A stream that cannot be read is reported immediately, in our own words; and only whoever reads one needs nats-py."""

import socket
import subprocess
import sys
import time

import pytest
from tests.trust.kit import refused

from penstock.pipeline.jetstream import messages as jobs_messages
from penstock.pipeline.jetstream.messages import check_stream
from penstock.pipeline.jetstream.options import parse_options


def test_a_server_that_is_not_there_is_told_at_once() -> None:
    started = time.monotonic()
    with refused("jetstream.unreachable"):
        check_stream(parse_options({"url": "nats://127.0.0.1:1", "stream": "S"}))
    assert time.monotonic() - started < 3


def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_messages, "_PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        with refused("jetstream.unreachable"):
            check_stream(parse_options({"url": url, "stream": "S"}))
        assert time.monotonic() - started < 3


def test_the_other_jobs_do_not_need_nats() -> None:
    text = "import sys\nsys.modules['nats'] = None\nimport penstock.apps.cli.pipeline.jobs"
    subprocess.run([sys.executable, "-c", text], check=True)
