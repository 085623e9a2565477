"""Handlers of the E2B protocols: one module per noun of theirs."""
