"""Images from steps. A recipe is a base and steps, written in Python, an image.toml or a Dockerfile.

A `Step` describes one change. A `Plan` is a recipe resolved against an existing base: the commands to run, their users,
directories and variables, and the key of each result. Keys form a chain: each covers the previous key and all inputs of
its step, so that a step with a known key does not run again. Only `sources` reads files of this host.
"""
