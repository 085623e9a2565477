# Generated from client/_async/volumes/__init__.py by scripts/generate_sync.py. Do not edit.
"""Volumes: directories that outlive sandboxes."""
