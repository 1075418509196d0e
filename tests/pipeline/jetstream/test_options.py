"""Options of `penstock.jetstream`: what is refused, and that no secret shows."""

import pickle
import subprocess
import sys

import pytest
from pyspark.errors import AnalysisException

from penstock.errors import PenstockError
from penstock.fabric.nats_login import NatsLogin
from penstock.pipeline.jetstream.options import COLUMNS, Options, parse_options
from penstock.pipeline.jetstream.source import JetStreamDataSource, register_jetstream
from penstock.pipeline.jetstream.writer import JetStreamStreamWriter

GIVEN = {"url": "nats://one:4222", "stream": "S"}


def test_options_are_read_whatever_their_case() -> None:
    given = GIVEN | {"URL": "one, tls://two:5222/", "Columns": "payload,subject", "failOnDataLoss": "False"}
    given |= {"subject": "a.>, b", "checkpointLocation": "/x", "timeout": "0.5"}
    del given["url"]
    read = parse_options(given)
    assert read.login.urls == ("nats://one:4222", "tls://two:5222")
    assert read.columns == ("subject", "payload")
    assert (read.fail_on_data_loss, read.subjects, read.timeout) == (False, ("a.>", "b"), 0.5)
    assert parse_options(GIVEN).columns == COLUMNS


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"url": ""}, "jetstream.missing-option"),
        ({"stream": ""}, "jetstream.missing-option"),
        ({"stream": "a.b"}, "jetstream.bad-option"),
        ({"strem": "S"}, "jetstream.unknown-option"),
        ({"url": "nats://amy:s3kr1t@one"}, "jetstream.secret-in-options"),
        ({"url": "amy@one"}, "jetstream.secret-in-options"),
        ({"Password": "s3kr1t"}, "jetstream.secret-in-options"),
        ({"token": "s3kr1t"}, "jetstream.secret-in-options"),
        ({"url": "http://one"}, "jetstream.bad-option"),
        ({"url": "nats://one:port"}, "jetstream.bad-option"),
        ({"partitions": "0"}, "jetstream.bad-option"),
        ({"partitions": "two"}, "jetstream.bad-option"),
        ({"timeout": "nan"}, "jetstream.bad-option"),
        ({"timeout": "soon"}, "jetstream.bad-option"),
        ({"failOnDataLoss": "no"}, "jetstream.bad-option"),
        ({"start": "-1"}, "jetstream.bad-option"),
        ({"columns": "subject,body"}, "jetstream.bad-option"),
        ({"columns": "subject,subject"}, "jetstream.bad-option"),
        ({"stateBucket": "a.b"}, "jetstream.bad-option"),
    ],
)
def test_what_makes_no_sense_or_shows_a_secret_is_refused(change: dict[str, str], code: str) -> None:
    with pytest.raises(PenstockError) as refused:
        parse_options(GIVEN | change)
    assert refused.value.code == code
    assert "s3kr1t" not in str(refused.value.as_dict())


def test_paths_of_secrets_are_not_shown_and_what_is_shipped_can_be_pickled() -> None:
    paths = {"credentials": "/keys/a", "nkey": "/keys/b", "tokenFile": "/keys/c", "tlsCert": "/keys/d"}
    read = parse_options(GIVEN | paths)
    assert "/keys" not in repr(read)
    assert pickle.loads(pickle.dumps(read)) == read  # noqa: S301  # our own
    pickle.dumps(JetStreamStreamWriter(read))
    source = JetStreamDataSource(GIVEN | {"columns": "id"})
    assert source.schema().simpleString() == "struct<id:string>"


@pytest.mark.parametrize(
    "login", [NatsLogin(("tls://one:4222",), tls_ca="/no/file"), NatsLogin(("tls://one:4222",), tls_cert="/no/file")]
)
def test_tls_files_that_do_not_read_are_an_error_with_a_code(login: NatsLogin) -> None:
    with pytest.raises(PenstockError) as refused:
        Options(login, "S").arguments()
    assert refused.value.code == "jetstream.credentials"
    arguments = Options(NatsLogin(("nats://one:4222",)), "S").arguments()
    assert arguments.keys() == {"servers", "inbox_prefix"}
    assert arguments["servers"] == ["nats://one:4222"]


def test_without_nats_py_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['nats'] = None; import penstock.pipeline.jetstream.source"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode != 0
    assert "jetstream.not-installed" in found.stderr


class Knowing:
    """A session in whose place another one is asked, which fails for a reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.dataSource = self

    def register(self, _source: type[JetStreamDataSource]) -> None:
        raise AnalysisException("it exists", self.reason)


def test_a_session_that_knows_the_source_may_be_told_again() -> None:
    register_jetstream(Knowing("DATA_SOURCE_ALREADY_EXISTS"))  # type: ignore[arg-type]  # as much of a session as is asked
    with pytest.raises(AnalysisException):
        register_jetstream(Knowing("TABLE_OR_VIEW_NOT_FOUND"))  # type: ignore[arg-type]  # as much of a session as is asked
