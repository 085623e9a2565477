"""The Model Context Protocol over the client: what a model's tools do is done by `AsyncSandbox`, with the rights of
whoever calls.

A *tool* is an async function of one noun's file: its docstring and arguments are what the model reads, its answer is a
value with a schema. A *caller* is whose calls these are: a client that acts for them, and the sandbox that is meant
when none is named. A *call* is one use of a tool by a caller. `build.make` puts all of it together for both transports,
`stdio` serves one client on stdin and stdout.

Nothing here is imported before it is used: the protocol's library is large.
"""
