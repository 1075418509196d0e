"""Importing Penstock is cheap: heavy libraries come in with the rooms that need them."""

import subprocess
import sys

import pytest

HEAVY = ["click", "cryptography", "nacl", "pyspark", "rich", "sqlglot", "z3"]


@pytest.mark.parametrize("module", ["penstock", "penstock.errors", "penstock.model", "penstock.testing"])
def test_importing_brings_in_no_heavy_library(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    found = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    loaded = found.stdout.split()
    assert "penstock" in loaded
    assert not set(loaded) & set(HEAVY)


def test_importing_the_package_alone_imports_none_of_its_rooms() -> None:
    program = "import sys, penstock; print(*(name for name in sys.modules if name.startswith('penstock')))"
    found = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["penstock"]


def test_names_of_the_package_are_imported_when_they_are_used() -> None:
    program = """
import sys, penstock
dir(penstock)
assert [name for name in sys.modules if name.startswith("penstock")] == ["penstock"]
penstock.event, penstock.PenstockError
assert "penstock.broker" not in sys.modules
penstock.connect
assert "penstock.broker.node" not in sys.modules
assert not {"pyspark", "z3", "nats", "click"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-I", "-c", program], check=True)


def test_a_broker_needs_nothing_of_the_pipeline() -> None:
    program = "import sys, penstock.apps.node.process; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    loaded = found.stdout.split()
    assert "penstock.apps.node.load" in loaded
    assert [name for name in loaded if name.startswith(("pyspark", "penstock.pipeline"))] == []


def test_commands_for_small_inputs_import_neither_fabrics_nor_roles_nor_spark() -> None:
    modules = "penstock.apps.cli.main, penstock.apps.cli.pipeline.small, penstock.pipeline.small.jobs"
    program = f"import sys, {modules}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert not {"asyncio", "penstock.fabric", "penstock.roles.engine", "pyspark"} & set(found.stdout.split())
