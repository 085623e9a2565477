"""HTTP for the routes: ASGI endpoint, authentication, decoding, responses, WebSockets, OpenAPI."""
