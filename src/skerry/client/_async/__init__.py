"""The client, written once: scripts/generate_sync.py generates `_sync` from this folder."""
