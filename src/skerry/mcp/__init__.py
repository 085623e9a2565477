"""The Model Context Protocol on top of the SDK: tools call `AsyncSandbox` with the caller's rights.

A *tool* is an async function in the file of its noun: the model reads its docstring and arguments, and its answer is a
value with a schema. A *caller* is a client of the SDK with its default sandbox. A *call* is one use of a tool by a
caller. `server.build_server` builds the MCP server for both transports: `stdio` serves one client on stdin and stdout,
`http` serves all tokens at `/mcp`.

Import this package only on use: the protocol's library is large.
"""
