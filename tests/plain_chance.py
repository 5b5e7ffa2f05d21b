"""Hashed chance in plain Python numbers, for the scalar versions of tasks."""


def plain_hash(*place: int) -> int:
    """SplitMix64's output function over unsigned Python numbers, place after place."""
    mixed = 0
    for part in place:
        mixed = (mixed + (part + 1) * 0x9E3779B97F4A7C15) % 2**64
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) % 2**64
        mixed ^= mixed >> 31
    return mixed


def sixteens(bits: int) -> list[int]:
    """The four 16-bit numbers in 64 bits."""
    return [(bits >> shift) % 2**16 for shift in (0, 16, 32, 48)]
