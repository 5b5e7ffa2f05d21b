"""How kinds of memory look in every picture: safe for the colour-blind, with markers as well."""

from typing import NamedTuple


class Look(NamedTuple):
    """What a kind is called, and its points."""

    name: str
    marker: str
    colour: str


# By the names of the policies' classes, a line each.
LOOKS = {
    "ExpireSpan": Look("Expire-Span", "o", "#d55e00"),
    "FixedSpan": Look("Transformer-XL", "s", "#0072b2"),
    "AdaptiveSpan": Look("Adaptive-Span", "^", "#009e73"),
    "Compressive": Look("Compressive", "D", "#cc79a7"),
}


def look_of(kind: str) -> Look:
    """Of a policy, by the name of its class or what it is called; of any other one for all."""
    named = {look.name: look for look in LOOKS.values()}
    return LOOKS.get(kind) or named.get(kind) or Look(kind, "v", "#1b1f24")
