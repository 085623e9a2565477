# Generated from client/_async/__init__.py by scripts/generate_sync.py. Do not edit.
"""The client, written once: scripts/generate_sync.py generates `_sync` from this folder."""
