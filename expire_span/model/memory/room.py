"""For how many states a memory has room, so that sizes change seldom.

On a CPU there is room for just those that stay. On a GPU there is some more, in chunks: allocated
memory is used again and again, and captured graphs too, which need all layers to have the sizes
they had before. So a layer that must grow takes room to spare, and whoever has too little to spare
grows along; sizes shrink only when all layers together have far too much. What is in spare room
costs no attention, but is projected, sorted and copied like the rest.

How much to spare: a layer that has had to change before will have to again, since what a text is
worth remembering comes and goes by tens of percent. It gets half as much again, up to a limit. One
that settles for the first time, as with spans that do not change, gets little.

Example: chunks of 8, two layers with room for 16 and 40. With 14 and 9 states both stay as they
are. With 17 and 9 the first must grow, to 17 and 8 more, in chunks: 32. The second has enough.

Shapes: L layers.
"""

import torch
from torch import Tensor


def offers(number: Tensor, now: int, chunk: int, most_spare: int) -> Tensor:
    """What one layer has to say about its size, int64 [4].

    The number of states that stay; the size it has; the best it could have; the largest that is not
    yet too much.

    Args:
        number: of states that stay.
        now: for how many there is room.
        chunk: sizes are multiples of it.
        most_spare: the limit, in chunks.
    """
    if number.is_cuda:
        return in_chunks(number, now, chunk, most_spare)
    return torch.stack([number, number, number, number])


def in_chunks(number: Tensor, now: int, chunk: int, most_spare: int) -> Tensor:
    """Offers of a GPU."""
    usual = (number // 2).clamp(chunk // 2, most_spare * chunk)
    spare = usual if now > 0 else chunk // 2
    best = (number + spare + chunk - 1) // chunk * chunk
    return torch.stack([number, torch.full_like(number, now), best, best + usual + 2 * chunk])


def agree(offered: Tensor) -> Tensor:
    """The sizes that all layers settle on.

    int64 [L, 4] -> [L]
    """
    number, now, best, most = offered.unbind(1)
    sizes = torch.where((number > now).any(), torch.maximum(now, best), now)
    return torch.where(sizes.sum() > most.sum(), best, sizes)
