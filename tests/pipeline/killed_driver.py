"""Drivers that are there to be killed: how they are run, how they begin and how they end."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from tests.java import LIGHT

from penstock.pipeline.jobs.session_settings import INTERPRETED

ROOT = Path(__file__).resolve().parents[2]


def drive(module: str, folder: Path, *arguments: str, spark: SparkSession | None = None) -> int:
    """Run a driver in a folder, and return how it ended; with the Java of a session, or with one of its own."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    driver = subprocess.Popen(
        [sys.executable, "-m", f"tests.pipeline.{module}", str(folder), *arguments],
        # Derby writes a log there.
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **({} if spark is None else _java_of(spark))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return driver.wait(600)
    finally:
        # Java too, if it outlives the driver.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def _java_of(spark: SparkSession) -> dict[str, str]:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java = gateway.gateway_parameters
    return {"PYSPARK_GATEWAY_PORT": str(java.port), "PYSPARK_GATEWAY_SECRET": java.auth_token}


def attached() -> SparkSession:
    """Return a session of a driver without a Java of its own: where it is, says the environment (see `drive`)."""
    gateway = launch_gateway()  # type: ignore[no-untyped-call]  # PySpark's own
    java = gateway.jvm.org.apache.spark
    context = java.api.java.JavaSparkContext(java.SparkContext.getOrCreate())
    spark = SparkSession(SparkContext(gateway=gateway, jsc=context, conf=SparkConf(_jconf=context.getConf())))
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)
    return spark


def begun(settings: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session with a Java of its own, for a handful of rows."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    quick = {"spark.sql.shuffle.partitions": "2", "spark.log.level": "OFF", **INTERPRETED, **LIGHT}
    return spark.config(map={**quick, **(settings or {})}).getOrCreate()


def kill() -> None:
    """End this process and its Java, in one blow: Java would finish what it is doing."""
    os.killpg(0, signal.SIGKILL)
