"""Review of the changes that programs in a sandbox made to its workspace.

ledger     a bare git repository that records every state of the workspace
collection one reading of the workspace, which becomes one commit in the ledger
writer     a process or call that was active when files changed
hunk       a piece of a change that can be accepted or rejected
decision   the acceptance or rejection of a hunk, pinned by hash
"""
