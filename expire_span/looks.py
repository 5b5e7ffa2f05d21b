"""How kinds of memory look in every picture: safe for the colour-blind, with markers as well."""

from typing import NamedTuple


class Look(NamedTuple):
    """Of the points of one kind."""

    marker: str
    colour: str


LOOKS = {
    "Expire-Span": Look("o", "#d55e00"),
    "Transformer-XL": Look("s", "#0072b2"),
    "Adaptive-Span": Look("^", "#009e73"),
    "Compressive": Look("D", "#cc79a7"),
}
OTHER = Look("v", "#1b1f24")
NAMES = {
    "ExpireSpan": "Expire-Span",
    "FixedSpan": "Transformer-XL",
    "AdaptiveSpan": "Adaptive-Span",
    "Compressive": "Compressive",
}
"""What policies are called there, by the names of their classes."""
