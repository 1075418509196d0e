"""A real server of the S3 protocol for tests: a free loopback port, buckets in a folder, ended by its process id.

    with S3Server(jars, more_jars) as server:
        server.bucket("events")

It is S3Proxy, which keeps buckets as folders of this machine. It checks signatures (version 4): whoever does not sign
with `KEY_ID` and `SECRET` is refused. The jars are in the folders that `tools/jars.py s3proxy s3a` prints. A server
that was stopped or killed starts again on the same port with the same data.
"""

import tempfile
import time
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import FailedError
from penstock.testing.server_process import ServerProcess, find_java, free_port

if TYPE_CHECKING:
    import subprocess

KEY_ID: Final = "penstock-tests"
SECRET: Final = "secret-of-penstock-tests"  # noqa: S105  # of a server that lives for a minute on this machine
_HOST: Final = "127.0.0.1"
_PAUSE: Final = 0.05
#: for a server that lives for a minute, and has little data
_JAVA: Final = (
    *("-Xmx128m", "-Xms32m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_SETTINGS: Final = """\
s3proxy.endpoint=http://{host}:{port}
s3proxy.authorization=aws-v4
s3proxy.identity={identity}
s3proxy.credential={secret}
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={data}
"""


class S3Server(ServerProcess):
    """One S3 server; a context manager that starts it, ends it, and removes its data.

    Raises `FailedError`: `testing.no-java`, `testing.s3-not-ready`.
    """

    def __init__(self, *jars: Path, ready_within: float = 120.0) -> None:
        folder = tempfile.TemporaryDirectory(prefix="penstock-s3-", ignore_cleanup_errors=True)
        super().__init__(folder, ready_within)
        self._jars = jars
        self._port = free_port()  # also for a second start

    @property
    def url(self) -> str:
        """Return where clients connect."""
        return f"http://{_HOST}:{self._port}"

    def bucket(self, name: str) -> Path:
        """Create a bucket if it is not there, and return its folder, which has a file for each object."""
        folder = self._folder / "buckets" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _prepare(self) -> tuple[list[str], Mapping[str, Any]]:
        java, settings, data = find_java(), self._folder / "s3proxy.conf", self._folder / "buckets"
        data.mkdir(exist_ok=True)
        settings.write_text(
            _SETTINGS.format(host=_HOST, port=self._port, identity=KEY_ID, secret=SECRET, data=data), "utf-8"
        )
        path = ":".join(f"{folder}/*" for folder in self._jars)
        return [java, *_JAVA, "-cp", path, "org.gaul.s3proxy.Main", "--properties", str(settings)], {}

    def _wait(self, process: "subprocess.Popen[bytes]", deadline: float) -> None:
        while time.monotonic() < deadline and process.poll() is None:
            connection = HTTPConnection(_HOST, self._port, timeout=1)
            try:
                connection.request("GET", "/")
                connection.getresponse().read()
            except (OSError, HTTPException):
                time.sleep(_PAUSE)
            else:
                return
            finally:
                connection.close()
        raise FailedError(
            "testing.s3-not-ready", "the S3 server did not get ready", hint=self.log[-2000:], status=process.poll()
        )
