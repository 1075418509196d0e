"""The options of every Java that a test starts: Spark's, mostly, which lives for a minute."""

import os
from pathlib import Path
from typing import Final

from penstock.pipeline.jobs.session_settings import BRIEF, EVERYWHERE

ROOT: Final = Path(__file__).resolve().parents[1]
ARCHIVE: Final = ROOT / ".tools" / "spark.jsa"
"""What `tools/spark_archive.py` made, or an empty file."""
_BRIEF: Final = (*BRIEF, "-XX:+UseSerialGC")
#: Spark's ten thousand classes alone would have all memory searched several times, and what a plan leaves is young
_ROOMY: Final = ("-XX:MetaspaceSize=400m", "-Xmn350m")
#: the folder of these settings would be on the class path, where an archive bears none
_LOGGED: Final = f"-Dlog4j2.configurationFile={ROOT / 'tools' / 'spark' / 'log4j2.properties'}"
#: besides what `penstock` itself sets: what a task takes in one piece to sort or count in, usually 32 MB, which Java
#: has to clear and to collect
LIGHT: Final = {**EVERYWHERE, "spark.buffer.pageSize": "1m"}


def options(settings: dict[str, str] | None = None) -> str:
    """Return options of Java for one that lives briefly, and has these settings of Spark."""
    made = ARCHIVE.exists() and ARCHIVE.stat().st_size
    archive = [f"-XX:SharedArchiveFile={ARCHIVE}"] if made else []
    return " ".join(
        [*_BRIEF, *_ROOMY, _LOGGED, *archive, *(f"-D{name}={value}" for name, value in (settings or {}).items())]
    )


def tell() -> None:
    """Let each Spark that this process starts begin so, and each that its children start."""
    os.environ.pop("SPARK_CONF_DIR", None)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", options())
    # A Java before it, which only says how the other is to be started.
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(_BRIEF))
