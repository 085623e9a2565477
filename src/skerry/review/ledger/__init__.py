"""The ledger: a bare git repository with the history of one sandbox's workspace."""
