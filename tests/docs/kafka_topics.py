"""`kafka-topics.sh --create` for pages: the jars of the tests have no tools for topics."""

import argparse

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic


def main() -> None:
    """Create a topic."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--create", action="store_true", required=True)
    for name in ("--bootstrap-server", "--topic", "--partitions"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    admin = AdminClient({"bootstrap.servers": given.bootstrap_server})
    admin.create_topics([NewTopic(given.topic, int(given.partitions), 1)])[given.topic].result(60)
    print(f"Created topic {given.topic}.")  # noqa: T201  # its output


if __name__ == "__main__":
    main()
