"""Keep the classes of Spark as Java has them in memory, in `.tools/spark.jsa`: each Java that tests start begins there.

A Java that starts Spark reads and checks some ten thousand classes, which takes longer than what most tests do with
them. It takes the archive only if it and the class path are those that made it, and does without otherwise: an archive
is quicker or of no effect, and never a fault. Where none can be made, the file is empty.

    python tools/spark_archive.py            make it
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that everybody knows it by

ARCHIVE = Path(__file__).resolve().parent.parent / ".tools" / "spark.jsa"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def make(archive: Path) -> None:
    """Submit this file, so that the Java which runs it ends before this does, and leaves an archive."""
    # Tests begin meanwhile, and take only a whole one.
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    options = f"-XX:ArchiveClassesAtExit={part} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
    # The folder of settings is on the class path, and an archive bears no folder there that is not empty.
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"}
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [submit, "--master", "local[1]", __file__, folder],
            env={**environment, "SPARK_SUBMIT_OPTS": options},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    part.touch()
    part.replace(archive)
    if done.returncode or not archive.stat().st_size:
        print("penstock: Spark left no whole archive of its classes; tests take longer", file=sys.stderr)


def exercise(folder: str) -> None:
    """Do a little of all that the pipeline does: files, JSON, groups, joins, a Python function, a stream."""
    builder = SparkSession.builder.appName("archive")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    lines = spark.createDataFrame([(f'{{"a": {number}, "b": "x"}}',) for number in range(3)], "value string")
    lines.write.text(f"{folder}/lines")
    read = spark.read.text(f"{folder}/lines").select("*", "_metadata.file_path")
    events = read.select(F.from_json("value", "a int, b string").alias("event"), "file_path").select("event.*")
    events.withColumn("c", F.expr("a % 2")).write.partitionBy("c").parquet(f"{folder}/events")
    stored = spark.read.parquet(f"{folder}/events")
    counts = stored.groupBy("c").agg(F.count("*").alias("n"), F.collect_set("b"))
    joined = stored.join(counts, "c").select("a", "b").orderBy("a")
    joined.mapInArrow(lambda batches: batches, "a int, b string").collect()
    stream = spark.readStream.schema("a int, b string, c int").parquet(f"{folder}/events")
    written = stream.writeStream.foreachBatch(look).trigger(availableNow=True)
    written.option("checkpointLocation", f"{folder}/state").start().awaitTermination()
    spark.stop()


def look(batch: DataFrame, _: int) -> None:
    """Take a batch."""
    batch.count()


if __name__ == "__main__":
    if sys.argv[1:]:
        exercise(sys.argv[1])
    else:
        make(ARCHIVE)
