"""Volumes: directories with a limit that outlive sandboxes. Any number of sandboxes of the owner mount one; its copies,
also the snapshots, which are volumes that never change, share its blocks."""
