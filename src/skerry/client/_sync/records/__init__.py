# Generated from client/_async/records/__init__.py by scripts/generate_sync.py. Do not edit.
"""Records of a sandbox: its trace, and replays of it."""
