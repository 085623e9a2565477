"""The two transports of the MCP server: stdio and HTTP."""
