"""What every grid world has in common: cells described by words, moves, and a view of 3 x 3 cells.

x grows to the right, y downwards; the view shows the row above the agent first. An agent sees a
cell as the set of its words, so an observation is a binary tensor of 3 x 3 x words.

Shapes: H x W cells of a map, V words.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MOVES = ("up", "down", "left", "right")
"""Names of the actions, in their order."""
STAY = "stay"
DX = (0, 0, -1, 1, 0)
DY = (-1, 1, 0, 0, 0)

AGENT, BLOCK, DOOR, OBJECT = "agent", "block", "door", "object"
COLOURS = ("red", "blue")

Cell = frozenset[str]
Cells = list[list[Cell]]
"""A map: rows from top to bottom, in each the cells from left to right."""

FLOOR: Cell = frozenset()
WALL: Cell = frozenset({BLOCK})


def walled(width: int, height: int) -> Cells:
    """A map of that many cells inside walls one cell thick."""
    wall = [WALL] * (width + 2)
    return [list(wall), *([WALL, *[FLOOR] * width, WALL] for _ in range(height)), list(wall)]


def view_at(cells: Cells, x: int, y: int, words: Sequence[str], walls: bool) -> Tensor:
    """What an agent at (x, y) sees, itself in the middle: uint8 [3, 3, V]; nothing off the map."""
    view = torch.zeros(3, 3, len(words), dtype=torch.uint8)
    for row in range(3):
        for column in range(3):
            shown = _cell(cells, x + column - 1, y + row - 1)
            for word in shown if walls else shown - WALL:
                view[row, column, words.index(word)] = 1
    view[1, 1, words.index(AGENT)] = 1
    return view


def turned(view: Tensor) -> Tensor:
    """A view [3, 3, V] as it is when up, down, left or right is ahead, [4, 3, 3, V]."""
    quarter_turns = (0, 2, -1, 1)  # counter-clockwise, to bring each direction to the top
    return torch.stack([view.rot90(turns) for turns in quarter_turns])


def _cell(cells: Cells, x: int, y: int) -> Cell:
    inside = 0 <= y < len(cells) and 0 <= x < len(cells[0])
    return cells[y][x] if inside else FLOOR
