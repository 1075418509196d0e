"""Where what is asked for is: the paths of the decision service, and the kinds of content that it speaks."""

from collections.abc import Mapping
from typing import Final

JSON: Final = "application/json"
XML: Final = "application/xml"
XACML_XML: Final = "application/xacml+xml"
XACML_JSON: Final = "application/xacml+json"

DISCOVERY: Final = "/.well-known/authzen-configuration"
HOME: Final = "/"
AUTHORIZE: Final = "/authorize"
HEALTH: Final = "/health"
METRICS: Final = "/metrics"
OPENAPI: Final = "/openapi.json"
#: endpoints of AuthZEN by the names that the discovery document has for them
ENDPOINTS: Final[Mapping[str, str]] = {
    "access_evaluation_endpoint": "/access/v1/evaluation",
    "access_evaluations_endpoint": "/access/v1/evaluations",
    "search_subject_endpoint": "/access/v1/search/subject",
    "search_resource_endpoint": "/access/v1/search/resource",
    "search_action_endpoint": "/access/v1/search/action",
}
