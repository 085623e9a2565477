"""Accepted changes, landing in a tree of this host: all of them or none.

place       the directory that they land in, and where what is kept of it stands
tree        that directory, walked by descriptors; no link in it is ever followed
content     files as they were, are and shall be, by git's own name of them
plan        what is to be done to each path, and what stands in the way; nothing is written yet
wish        a path, from what it was to what it shall be; trouble is what keeps it from that
record      one apply in the journal: what it does, how far it came, how to take it back
"""
