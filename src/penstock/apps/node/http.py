"""What a node tells of itself over HTTP, to GET and HEAD, and nothing is looked at but the path.

Whoever can reach the address may ask, so it says nothing about anybody.
"""

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TypeAlias

from penstock.apps.http.server import Answer, Asked, Bounds, HttpService, refused
from penstock.model.limits import DEFAULT_LIMITS, Limits

Pages: TypeAlias = Mapping[str, Callable[[], Answer]]
"""What is at each path."""


def pages_service(pages: Pages, limits: Limits = DEFAULT_LIMITS) -> HttpService:
    """Return a server of pages, whose code is `node.http`."""

    def answer(asked: Asked) -> Answer:
        if asked.method not in (b"GET", b"HEAD"):
            return refused(HTTPStatus.METHOD_NOT_ALLOWED, b"Allow: GET, HEAD\r\n")
        page = pages.get(asked.path.decode("latin-1"))
        return refused(HTTPStatus.NOT_FOUND) if page is None else page()

    return HttpService(answer, Bounds.of_pages(limits), "node.http")
