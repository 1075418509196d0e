"""The decision service: AuthZEN 1.0 and XACML REST over HTTP, by a bundle of policies that may change at any time."""
