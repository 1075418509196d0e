"""Fetch jars into `.tools/jars`, for tests: the versions and hashes of a list in the folder `tools/jars`.

    kafka      a Kafka server
    s3proxy    a server of the S3 protocol
    s3a        what Spark needs to use one

Maven fetches them if there is an `mvn`, with the repositories that it is configured for. Otherwise Ivy does, which is
Spark's own resolver and comes with PySpark. Several processes can call this at a time: one of them fetches.

    python tools/jars.py                     fetch what is missing of all lists, and print the folders
    python tools/jars.py s3a                 of one list
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tools" / "jars"
FOLDER = ROOT / ".tools" / "jars"
PATIENCE = 300
Coordinates = tuple[str, str, str]  # group, artifact, version
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>penstock</groupId><artifactId>jars</artifactId><version>1</version><dependencies>{jars}</dependencies></project>
"""
#: all jars are listed, so none may bring others
_POM_JAR = """<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"""
_IVY = """<ivy-module version="2.0"><info organisation="penstock" module="jars"/><dependencies>{jars}</dependencies>
</ivy-module>"""
_IVY_JAR = '<dependency org="{0}" name="{1}" rev="{2}" transitive="false" conf="*->default"/>'


class UnavailableError(Exception):
    """The jars cannot be fetched here, or are not the ones that are expected."""


def wanted(text: str) -> dict[Coordinates, str]:
    """Return the hashes of a list by coordinates."""
    jars: dict[Coordinates, str] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            digest, coordinates = line.split()
            group, artifact, version = coordinates.split(":")
            jars[group, artifact, version] = digest
    return jars


def fetch(name: str) -> Path:
    """Return the folder of the jars of a list; fetch them first if it is not there. Raises `UnavailableError`."""
    text = (LISTS / f"{name}.txt").read_text()
    # A list that has changed has another folder, so that it never finds old jars.
    folder = FOLDER / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if not folder.is_dir():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with (FOLDER / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(dir=FOLDER) as part:
                    resolve(wanted(text), Path(part)).rename(folder)
    return folder


def resolve(jars: dict[Coordinates, str], folder: Path) -> Path:
    """Fetch jars, check them, and return a folder within this one that has them alone. Raises `UnavailableError`."""
    out = folder / "jars"
    if maven := shutil.which("mvn"):
        (folder / "pom.xml").write_text(_POM.format(jars="".join(_POM_JAR.format(*jar) for jar in jars)))
        copy = ("dependency:copy-dependencies", f"-DoutputDirectory={out}")
        _run([maven, "--quiet", "--batch-mode", "--file", str(folder / "pom.xml"), *copy])
    else:
        (folder / "ivy.xml").write_text(_IVY.format(jars="".join(_IVY_JAR.format(*jar) for jar in jars)))
        ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
        files = ("-ivy", str(folder / "ivy.xml"), "-cache", str(folder / "cache"))
        # Ivy takes the type of a jar from its project: those of OSGi are bundles.
        retrieve = ("-types", "jar", "bundle", "-retrieve", f"{out}/[artifact]-[revision].[ext]")
        _run([_java(), "-jar", str(ivy), "-m2compatible", *files, *retrieve])
    check(jars, out)
    return out


def check(jars: dict[Coordinates, str], folder: Path) -> None:
    """Check that a folder has these jars with these hashes, and no others. Raises `UnavailableError`."""
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*")}
    expected = {f"{artifact}-{version}.jar": digest for (_, artifact, version), digest in jars.items()}
    if found != expected:
        different = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        raise UnavailableError(f"jars are not those of the list: {', '.join(different)}")


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        raise UnavailableError("there is no Java to fetch jars with")
    return java


def _run(command: list[str]) -> None:
    try:
        # Java that does not optimise takes half the time here.
        environment = {**os.environ, "MAVEN_OPTS": f"{os.environ.get('MAVEN_OPTS', '')} -XX:TieredStopAtLevel=1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"the jars were not there after {PATIENCE} s") from error
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())
        raise UnavailableError(f"the jars cannot be fetched; is a Maven repository reachable? {said[-400:]}")


if __name__ == "__main__":
    try:
        for one in sys.argv[1:] or sorted(path.stem for path in LISTS.glob("*.txt")):
            print(fetch(one))
    except UnavailableError as error:
        sys.exit(f"penstock: {error}")
