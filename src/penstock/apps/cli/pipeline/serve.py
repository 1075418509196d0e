"""`penstock pipeline serve`: keep a Spark warm, so that the next command does not wait for its start."""

import os
import secrets
import signal
import socket
from typing import Final

from penstock.apps.cli.pipeline.options import pairs
from penstock.apps.cli.pipeline.spark_session import Cluster
from penstock.apps.cli.pipeline.spark_session import session as spark_session
from penstock.apps.cli.pipeline.warm_spark import ALONE, noted, refuse_second
from penstock.apps.cli.shared.commands import command, option, option_class
from penstock.apps.cli.shared.session import say
from penstock.errors import FailedError

_LOOPBACK: Final = "127.0.0.1"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_LOOK: Final = 2.0
_SECRET: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105  # the name of the variable that Spark reads


@option_class
class _Serve:
    master: str = option("--master", default="local[*]", show_default=True, metavar="URL", help="Run Spark there.")
    conf: tuple[str, ...] = option(
        "--conf", multiple=True, metavar="NAME=VALUE", help="Set a Spark setting. Can be repeated."
    )
    spark_log: str | None = option(
        "--spark-log", metavar="FILE", help="Write the log of Spark and Java to this file (default: nowhere)."
    )


@command(
    example="""
penstock pipeline serve
"""
)
def serve(options: _Serve) -> None:
    """Keep a Spark running. Other pipeline commands of the same user find it, and start in a second or two.

    The command runs until it is stopped (SIGINT, SIGTERM). Commands with --master, --remote or --conf start a Spark of
    their own, and so do all commands where PENSTOCK_SPARK_ALONE=1 is set.
    """
    refuse_second()
    secret = secrets.token_urlsafe(32)
    port = _free_port()
    server = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": _LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
    }
    # In the environment of Java: settings can be read by whoever may use the session.
    os.environ[_SECRET] = secret
    os.environ[ALONE] = "1"
    cluster = Cluster(options.master, None, {**server, **pairs(options.conf, "--conf")}, options.spark_log)
    with spark_session(cluster) as on:
        del os.environ[_SECRET]
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        with noted(port, secret) as warm:
            say(f"Spark is ready: pipeline commands use it until process {warm.process} is stopped")
            while signal.sigtimedwait(_SIGNALS, _LOOK) is None:
                if on.spark.sparkContext._jsc.sc().isStopped():  # noqa: SLF001  # PySpark has no other name for it
                    raise FailedError(
                        "pipeline.spark", "Spark has stopped", hint="start it again; --spark-log FILE keeps its log"
                    )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((_LOOPBACK, 0))
        return int(found.getsockname()[1])
