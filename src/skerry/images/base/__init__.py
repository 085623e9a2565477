"""The image `base`: packages from the host's apt archive, Node from PyPI, final files, and a digest of the recipe."""
