"""Copies a repository of this host into a sandbox.

A *place* is a directory with its working tree's top and its git directory. A *state* is the content of git at one
moment: HEAD, refs, index and settings; only safe settings are copied. A *copy* is the archive of a place: the files on
disk and, for the place and each repository in it, a new `.git`. *Rules* name the files that a review leaves out.
"""
