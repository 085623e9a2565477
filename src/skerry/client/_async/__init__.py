"""The client, written once: `_sync` is generated from this folder by scripts/generate_sync.py."""
