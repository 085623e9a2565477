"""Apply accepted changes to a directory of this host: all of them or none.

target_dir   the directory that receives the changes, and the place of its journal
tree         that directory, walked by descriptors; no link in it is ever followed
content      file contents by their git object names: before, now and after
plan         the action for each path, and the problems that prevent it; planning writes nothing
journal      one record per apply: its changes, its progress, and how to undo it
"""
