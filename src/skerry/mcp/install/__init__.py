"""Editing the settings files of MCP clients for `skerry mcp install`."""
