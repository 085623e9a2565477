"""The server: the engine over HTTP, on a unix socket and, with tokens, on TCP.

Route           a row of the table in `app`: method, path, handler, scope, types; the OpenAPI document is built from it
Call            a request as a handler sees it: the caller, the decoded query and body, the engine
Authenticator   the checks of a listener before any effect: Host, Origin, token
StreamResponse  a response that is sent while it is produced
"""
