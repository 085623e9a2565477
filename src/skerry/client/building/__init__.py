"""Images from steps. A recipe is a base and steps, whether it was written in Python, an image.toml or a Dockerfile.

A `Step` says what is wished for. A `Plan` is a recipe settled on a base that is there: what runs, as whom, where, with
which variables, and under which key its result is kept. Keys chain: each is made of the one before and of all that its
step goes by, so that a step whose key is known need not run again. Whatever reads this host's files is in `sources`.
"""
