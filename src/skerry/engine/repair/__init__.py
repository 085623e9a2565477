"""Protection against a lost database: record files beside the data, the rebuild from them, quarantine, and backups."""
