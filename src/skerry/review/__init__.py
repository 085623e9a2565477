"""The ledger of changes: what a workspace was, what each command made of it, and what was decided about that.

ledger      the git history of a workspace: a bare repository on the host, one commit for each command
hunk        the unit of approval: changed lines, or a file as a whole
decision    what a person said of a hunk; it follows the hunk, and falls when the hunk's content changes
risk        why a change needs accepting by itself
"""
