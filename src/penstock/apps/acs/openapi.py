"""The OpenAPI 3.1 document of the admin API, made from the fields of its operations."""

from http import HTTPStatus
from typing import Any, Final

import msgspec

from penstock.apps.acs.operations import OPERATIONS, ApiOperation

_JSON: Final = "application/json"
_ERRORS: Final = {
    HTTPStatus.BAD_REQUEST: "The request is malformed.",
    HTTPStatus.UNAUTHORIZED: "The request is not signed, or its signature is not valid.",
    HTTPStatus.FORBIDDEN: "`decide()` does not permit the caller this operation.",
    HTTPStatus.NOT_FOUND: "A member, certificate, type or chain is not there.",
    HTTPStatus.CONFLICT: "The state of the domain does not allow it, or the request was applied already.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too long.",
    HTTPStatus.SERVICE_UNAVAILABLE: "The store or the signer failed. Repeat the request: it is applied once.",
}
_DESCRIPTION: Final = (
    "Manage a domain: its members, the certificates it issues, delegations and revocations. Each request is signed by "
    "its caller's key (RFC 9421), and authorised by the caller's rights on the network DOMAIN/NAME."
)


def acs_document(url: str) -> dict[str, Any]:
    """Return the document of a service at this address."""
    _, components = msgspec.json.schema_components(
        [operation.fields for operation in OPERATIONS], ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock access control service",
            "version": "1.0",
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": url}],
        "security": [{"signature": [], "signatureInput": [], "contentDigest": [], "domain": []}],
        "paths": {
            **{operation.path: {"post": _operation(operation)} for operation in OPERATIONS},
            "/health": {"get": _page("health", "Whether the service reaches its store")},
            "/openapi.json": {"get": _page("openapi", "This document")},
        },
        "components": {
            "schemas": {
                **components,
                "Answer": {"type": "object"},
                "Error": {
                    "type": "object",
                    "properties": {
                        "error": {
                            "type": "object",
                            "properties": {name: {"type": "string"} for name in ("code", "message", "hint")},
                            "required": ["code", "message"],
                        }
                    },
                    "required": ["error"],
                },
            },
            "securitySchemes": {
                name: {"type": "apiKey", "in": "header", "name": header}
                for name, header in (
                    ("signature", "Signature"),
                    ("signatureInput", "Signature-Input"),
                    ("contentDigest", "Content-Digest"),
                    ("domain", "Penstock-Domain"),
                )
            },
        },
    }


def _operation(operation: ApiOperation) -> dict[str, Any]:
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "requestBody": {
            "required": True,
            "content": {_JSON: {"schema": {"$ref": f"#/components/schemas/{operation.fields.__name__}"}}},
        },
        "responses": {
            "200": {"description": "It is done.", "content": _content("Answer")},
            **{str(status.value): _error(text) for status, text in _ERRORS.items()},
        },
    }


def _page(name: str, summary: str) -> dict[str, Any]:
    failed = {str(status.value): _error(_ERRORS[status]) for status in (HTTPStatus.SERVICE_UNAVAILABLE,)}
    return {
        "operationId": name,
        "summary": summary,
        "security": [],
        "responses": {"200": {"description": summary, "content": _content("Answer")}, **failed},
    }


def _error(text: str) -> dict[str, Any]:
    return {"description": text, "content": _content("Error")}


def _content(name: str) -> dict[str, Any]:
    return {_JSON: {"schema": {"$ref": f"#/components/schemas/{name}"}}}
