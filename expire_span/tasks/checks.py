"""Refusals that several tasks share, one sentence each."""

from collections.abc import Sequence


def require_at_least(least: int, **values: int) -> None:
    """Refuse a value below `least`, by its name."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}.")


def require_one_of(allowed: Sequence[str], **values: str) -> None:
    """Refuse a value that is not one of the names allowed."""
    for name, value in values.items():
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")


def require_shares(train: float, valid: float) -> None:
    """Refuse shares of train and valid that cannot be cut from one whole."""
    if train <= 0 or valid < 0:
        raise ValueError(
            f"train_share must be above 0 and valid_share at least 0, not {train} and {valid}."
        )
    if train + valid > 1:
        raise ValueError(
            f"train_share and valid_share must not exceed 1 together, as {train} and {valid} do."
        )
