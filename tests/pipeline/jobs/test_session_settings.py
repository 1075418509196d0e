"""Which inputs are small, so that they do not pay for what speeds up large ones."""

from pathlib import Path

from penstock.pipeline.jobs import session_settings
from penstock.pipeline.jobs.session_settings import LOCAL, SMALL, SMALL_INPUT, is_small


def test_what_is_small_is_told_by_the_files_of_this_machine(tmp_path: Path) -> None:
    assert not is_small(None)
    assert not is_small(str(tmp_path / "nothing"))
    assert not is_small("s3a://bucket/log")
    assert not is_small(str(tmp_path)), "an empty folder may be one that is about to be filled"
    file = tmp_path / "below" / "log.jsonl"
    file.parent.mkdir()
    file.write_bytes(bytes(SMALL_INPUT))
    for path in (file, tmp_path):
        assert is_small(str(path))
        assert is_small(f"file:{path}")
    (tmp_path / "more").write_bytes(b"0")
    assert is_small(str(file))
    assert not is_small(str(tmp_path))


def test_many_files_are_no_small_input(tmp_path: Path) -> None:
    for number in range(session_settings._SMALL_FILES + 1):
        (tmp_path / str(number)).touch()
    assert not is_small(str(tmp_path))


def test_a_session_for_a_small_input_keeps_what_java_is_told_on_one_machine() -> None:
    options = "spark.driver.defaultJavaOptions"
    assert SMALL[options].startswith(LOCAL[options])
