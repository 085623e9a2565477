"""`skerry shell` and `skerry attach`: connect the local terminal to a terminal inside a sandbox."""
