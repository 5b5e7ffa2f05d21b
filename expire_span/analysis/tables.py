"""The numbers behind a plot, as CSV."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np


def write_csv(path: Path, heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Write a table; numbers have as many digits as mean something."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(heads)
        writer.writerows([_cell(value) for value in row] for row in rows)
    return path


def write_records(path: Path, records: Sequence[Any]) -> Path:
    """Write dataclasses, a field a column."""
    heads = [field.name for field in fields(records[0])] if records else []
    rows = ([getattr(record, name) for name in heads] for record in records)
    return write_csv(path, heads, rows)


def _cell(value: Any) -> Any:
    return f"{value:.7g}" if isinstance(value, float | np.floating) else value
