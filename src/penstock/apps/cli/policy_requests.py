"""Requests of XACML in files, in either form."""

from penstock.apps.cli.files import read_bytes, within
from penstock.errors import MalformedError
from penstock.policy import json_requests, xml_requests
from penstock.policy.requests import Request


def read_request_file(file: str) -> Request:
    """Read a request in XML or in the JSON profile. Raises `MalformedError` (`xacml.request` and others)."""
    data = read_bytes(file)
    with within(file):
        if data.lstrip()[:1] == b"{":
            return json_requests.read_request(data)
        if data.lstrip()[:1] == b"<":
            return xml_requests.read_request(data)
        raise MalformedError("xacml.request", "a request is XML or JSON")
