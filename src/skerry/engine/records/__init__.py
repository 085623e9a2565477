"""Records: the audit log (`audit/`), traces and replays (`trace/`), usage and budgets (`usage/`)."""
