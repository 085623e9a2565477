"""The ledger of changes: the history of a workspace, one commit per command, and the decisions about its changes.

ledger      the git history of a workspace: a bare repository on the host, one commit for each command
hunk        the unit of approval: changed lines, or a file as a whole
decision    accept, reject or edit a hunk; it follows the hunk, and is dropped when the hunk's content changes
risk        the reason that a change must be accepted explicitly
"""
