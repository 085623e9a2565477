"""Hunks: differences between base and workspace, decisions about them, and the patch set of accepted ones."""
