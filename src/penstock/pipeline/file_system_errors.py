"""What errors of object stores, and of other file systems of Hadoop, mean.

Spark passes them on in many wrappings, and Spark Connect as text alone, so they are recognised by their text.
"""

import re
from typing import Final

from penstock.errors import FailedError

#: how errors name a path, and if they do not, the scheme of one, or its server; Hadoop adds addresses of its own help
_PLACES: Final = (
    re.compile(r"\b((?!https?:)[a-z][a-z0-9+.-]*://[^\s`':;,()]{1,200})", re.ASCII),
    re.compile(r"for scheme \"([\w+.-]{1,40})\"|Class org\.apache\.hadoop\.fs\.(\w{1,40})\.\S+ not found", re.ASCII),
    re.compile(r" to ([\w.-]{1,253}:\d+) failed on connection|UnknownHostException: ([\w.-]{1,253})", re.ASCII),
)
#: what the text of an error contains, the error that it is, and what to do
_STORE_ERRORS: Final = (
    (
        re.compile(r"UnsupportedFileSystemException|No FileSystem for scheme|Class org\.apache\.hadoop\.\S+ not found"),
        "pipeline.no-connector",
        "Spark has no connector for the file system of {place}",
        "write s3a:// for S3, and give Spark the connector of its Hadoop version, say with --conf spark.jars=FILES",
    ),
    (
        re.compile(r"UnknownStoreException|NoSuchBucket"),
        "pipeline.no-bucket",
        "the bucket of {place} does not exist",
        "check its name and the endpoint, or create the bucket",
    ),
    (
        re.compile(
            r"AccessDeniedException|AccessControlException|NoAuthWithAWSException|Status Code: 40[13]\b"
            # In delta-rs. Without credentials it asks the address at which machines of a cloud find theirs.
            r"|\b40[13] (Forbidden|Unauthorized)|169\.254\.169\.254"
        ),
        "pipeline.store-denied",
        "access to {place} is refused",
        "check the credentials of Spark, or for a Delta table those in the environment; see the how-to for clusters",
    ),
    (
        # Of S3, of HDFS, and of delta-rs. A connection between parts of Spark that fails says neither.
        re.compile(r"Unable to execute HTTP request|failed on connection exception|UnknownHostException|HTTP error"),
        "pipeline.store-unreachable",
        "the server of {place} does not answer",
        "check the endpoint (`spark.hadoop.fs.s3a.endpoint`, or AWS_ENDPOINT_URL for a Delta table) and the network",
    ),
)


def store_error(text: str, place: str | None = None) -> FailedError | None:
    """Return what an error means if a file system caused it: by its text, which is not repeated."""
    for pattern, code, message, hint in _STORE_ERRORS:
        if pattern.search(text):
            named = (found[found.lastindex or 0] for one in _PLACES if (found := one.search(text)))
            return FailedError(code, message.format(place=f"`{place or next(named, 'a path')}`"), hint=hint)
    return None
