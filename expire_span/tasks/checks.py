"""Refusals that several tasks share, one sentence each."""


def require_at_least(least: int, **values: int) -> None:
    """Refuse a value below `least`, by its name."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}.")
