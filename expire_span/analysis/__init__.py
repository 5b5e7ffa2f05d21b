"""What was learned: reads what models return, never edits a model."""
