"""For how many states a memory has room, so that sizes change seldom.

On a CPU there is room for just those that stay. On a GPU there is some more, in chunks: allocated
memory is used again and again, and captured graphs too, which need all layers to have the sizes
they had before. So as soon as one layer must have another size, all take one with room to spare.
What is in spare room costs no attention, only its projection.

Example: chunks of 8, two layers with room for 16. With 14 and 9 states both stay as they are. With
14 and 17 the second must grow: the first gets 24 too, having had room for only two more.

Shapes: L layers.
"""

import torch
from torch import Tensor


def offers(number: Tensor, now: int, chunk: int) -> Tensor:
    """Sizes that one layer can have for `number` states, int64 [2].

    First the one it has, `now`, or -1 if that will not do, then the one that would be best.
    """
    return in_chunks(number, now, chunk) if number.is_cuda else torch.stack([number, number])


def in_chunks(number: Tensor, now: int, chunk: int) -> Tensor:
    """Offers of a GPU: the best leaves at least half a chunk free; two chunks more will do too."""
    best = (number + chunk + chunk // 2 - 1) // chunk * chunk
    best = torch.where(number > 0, best, 0)  # nothing needs no room
    will_do = (number <= now) & (now <= best + 2 * chunk)
    return torch.stack([torch.where(will_do, now, -1), best])


def agree(offered: Tensor) -> Tensor:
    """What all layers settle on: as they are if that will do for each, else what is best for each.

    int64 [L, 2] -> [L]
    """
    present, best = offered.unbind(1)
    return torch.where((present >= 0).all(), present, best)
