# Generated from client/_async/__init__.py by scripts/generate_sync.py. Do not edit.
"""The client, written once: `_sync` is generated from this folder by scripts/generate_sync.py."""
