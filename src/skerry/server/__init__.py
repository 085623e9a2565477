"""The server: the engine over HTTP, on a unix socket and, with tokens, on TCP.

Route     one row of the table in `app`: method, path, handler, scope, answers; the OpenAPI document is made from it
Call      one request as a handler sees it: who calls, the decoded query and body, the engine
Door      one listener's checks before any effect: Host, Origin, who calls
Stream    an answer that is sent as it comes
"""
