"""The server's interface: requests, responses, errors, and the OpenAPI document that describes them."""
