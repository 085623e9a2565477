"""A repository of this host, on its way into a sandbox.

A *place* is a directory and what git says of it: where its top and its git directory are. A *state* is all that git
there has at one moment: its HEAD, refs, index and settings, of which only what is harmless goes along. A *copy* is the
archive of a place: the files as they are on disk, and beside them, for the place and each repository within it, a
`.git` made anew. *Rules* are what of it a review leaves out.
"""
