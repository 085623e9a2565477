"""Sandboxes that were started in advance, so that creation takes milliseconds.

pool   a set of started sandboxes without an owner, kept for each image in recent use
claim  the conversion of a pooled sandbox into the sandbox that a caller requested
"""
