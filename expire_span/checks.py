"""Refusals of settings that cannot be, one sentence each, for everyone."""

from collections.abc import Sequence
from math import isfinite
from numbers import Integral, Real


def require_at_least(least: int, **values: int | None) -> None:
    """Refuse what is no whole number of at least `least`, by its name; None is left out."""
    for name, value in values.items():
        if value is None:
            continue
        if not isinstance(value, Integral) or value < least:
            raise ValueError(
                f"{name} must be a whole number of at least {least}, but is {value!r}."
            )


def require_not_negative(**values: float) -> None:
    """Refuse a value below 0."""
    for name, value in values.items():
        if not value >= 0:  # nan is neither
            raise ValueError(f"{name} must not be negative, but is {value}.")


def require_finite(**values: float) -> None:
    """Refuse what is no number, or none that can be added up."""
    for name, value in values.items():
        if not isinstance(value, Real) or not isfinite(value):
            raise ValueError(f"{name} must be a finite number, but is {value}.")


def require_above_zero(**values: float | None) -> None:
    """Refuse a value that is not above 0; None is left out."""
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be above 0, but is {value}.")


def require_yes_or_no(**values: bool) -> None:
    """Refuse what is neither true nor false; any text would count as true."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, but is {value!r}.")


def require_one_of(allowed: Sequence[str], **values: str) -> None:
    """Refuse a value that is not one of the names allowed."""
    for name, value in values.items():
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, but is {value!r}.")


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
