"""What was drawn, as data."""
