# Generated from client/_async/files.py by scripts/generate_sync.py. Do not edit.
"""`sandbox.files`: the file system inside, through the keeper. Paths are absolute, or relative to the sandbox's cwd."""

from __future__ import annotations

from skerry.client._sync.editing import Editing
from skerry.client._sync.trees import Trees


class Files(Editing, Trees):
    """Each call acts with the rights of `user` (the image's user unless named); errors are also the builtins they are:
    FileNotFoundError, IsADirectoryError, PermissionError … A name that is not UTF-8 is a str as `os.fsdecode` makes it.
    """
