"""Volumes: directories that outlive sandboxes."""
