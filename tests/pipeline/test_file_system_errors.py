"""Errors of file systems by their texts, as Spark gives them in its own process and through Spark Connect."""

import pytest

from penstock.pipeline.file_system_errors import store_error

STORE = "software.amazon.awssdk.services.s3.model"
#: the exception of Java, its words, the code, and the place that is named
ERRORS = {
    "denied": (
        "java.nio.file.AccessDeniedException",
        f"s3a://b/in: getFileStatus on s3a://b/in: {STORE}.S3Exception: Forbidden (Service: S3, Status Code: 403):null",
        "pipeline.store-denied",
        "s3a://b/in",
    ),
    "bucket": (
        "org.apache.hadoop.fs.s3a.UnknownStoreException",
        f"`s3a://b/in': getFileStatus on s3a://b/in: {STORE}.NoSuchBucketException: The bucket does not exist",
        "pipeline.no-bucket",
        "s3a://b/in",
    ),
    "unreachable": (
        "java.net.ConnectException",
        (
            "getFileStatus on s3a://b/in: software.amazon.awssdk.core.exception.SdkClientException: Unable to execute "
            "HTTP request: Connect to 127.0.0.1:9 [/127.0.0.1] failed: Connection refused (SDK Attempt Count: 2)"
        ),
        "pipeline.store-unreachable",
        "s3a://b/in",
    ),
    "unreachable-hdfs": (
        "java.net.ConnectException",
        (
            "Call From a/127.0.0.1 to names.example:8020 failed on connection exception: java.net.ConnectException: "
            "Connection refused; For more details see:  http://wiki.apache.org/hadoop/ConnectionRefused"
        ),
        "pipeline.store-unreachable",
        "names.example:8020",
    ),
    "host": (
        "java.lang.IllegalArgumentException",
        "java.net.UnknownHostException: names.example",
        "pipeline.store-unreachable",
        "names.example",
    ),
    "connector": (
        "java.lang.RuntimeException",
        "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.gs.GoogleHadoopFileSystem not found",
        "pipeline.no-connector",
        "gs",
    ),
    "scheme": (
        "org.apache.hadoop.fs.UnsupportedFileSystemException",
        'No FileSystem for scheme "s4"',
        "pipeline.no-connector",
        "s4",
    ),
}
TRACE = "\tat org.apache.hadoop.fs.FileSystem.get(FileSystem.java:558)\n\t... 25 more"
WRAPPINGS = {
    "classic": "An error occurred while calling o58.text.\n: {kind}: {words}\n{trace}",
    "task": "Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task 0.0 "
    "in stage 1.0 (TID 1) (192.0.2.1 executor driver): {kind}: {words}\n{trace}",
    "connect": "({kind}) {words}\n\nJVM stacktrace:\n{kind}\n{trace}",
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("what", ERRORS)
def test_errors_of_stores_are_recognised_in_every_wrapping(what: str, wrapping: str) -> None:
    kind, words, code, place = ERRORS[what]
    text = WRAPPINGS[wrapping].format(kind=kind, words=words, trace=TRACE)
    found = store_error(text)
    assert found is not None
    assert found.code == code
    assert f"`{place}`" in str(found)
    # A path that the caller knows comes first.
    assert "`delta:t`" in str(store_error(text, "delta:t"))


@pytest.mark.parametrize(
    "text",
    [
        "(org.apache.spark.SparkException) Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times",
        "An error occurred while calling o58.collect.\n: java.io.IOException: Failed to connect to /192.0.2.1:35001",
        "[PATH_NOT_FOUND] Path does not exist: s3a://b/in. SQLSTATE: 42K03",
    ],
)
def test_other_errors_are_not_those_of_a_store(text: str) -> None:
    assert store_error(text) is None
