"""Pictures of a world: as text, or as pixels.

Shapes: H x W cells, S pixels along the side of one.
"""

import numpy as np
from numpy.typing import NDArray

from expire_span.worlds.grid import AGENT, BLOCK, DOOR, OBJECT, Cell
from expire_span.worlds.world import Game, WorldState

CELL = 16  # pixels
PAINT = {
    BLOCK: (90, 90, 90),
    "red": (213, 94, 0),  # colour-blind-safe, and apart from one another in grey too
    "blue": (0, 114, 178),
    AGENT: (20, 20, 20),
}
FLOOR_PAINT = (245, 245, 245)


def as_text(game: Game, state: WorldState, row: int) -> str:
    """One character a cell: A agent, # wall, R and B doors, r and b objects; a caption below."""
    cells = game.map(state, row)
    x, y = game.place(state, row)
    lines = [[_letter(cell) for cell in line] for line in cells]
    lines[y][x] = "A"
    return "\n".join("".join(line) for line in lines) + f"\n{game.caption(state, row)}\n"


def as_pixels(game: Game, state: WorldState, row: int) -> NDArray[np.uint8]:
    """Cells as squares: doors as frames, objects as small squares, the agent as a disc."""
    cells = game.map(state, row)
    place = game.place(state, row)
    return np.concatenate(
        [
            np.concatenate([_tile(cell, (x, y) == place) for x, cell in enumerate(line)], axis=1)
            for y, line in enumerate(cells)
        ]
    )


def _letter(cell: Cell) -> str:
    if BLOCK in cell:
        return "#"
    if DOOR in cell:
        return "R" if "red" in cell else "B"
    if OBJECT in cell:
        return "r" if "red" in cell else "b"
    return "."


def _tile(cell: Cell, agent_here: bool) -> NDArray[np.uint8]:
    """The pixels of one cell, uint8 [S, S, 3]."""
    tile = np.full((CELL, CELL, 3), FLOOR_PAINT, dtype=np.uint8)
    colour = next((PAINT[word] for word in ("red", "blue") if word in cell), None)
    if BLOCK in cell:
        tile[:] = PAINT[BLOCK]
    elif DOOR in cell and colour is not None:
        tile[:] = colour
        tile[4:-4, 4:-4] = FLOOR_PAINT
    elif OBJECT in cell and colour is not None:
        tile[4:-4, 4:-4] = colour
    if agent_here:
        offsets = np.arange(CELL) - (CELL - 1) / 2
        tile[offsets[:, None] ** 2 + offsets**2 < (CELL / 2 - 2) ** 2] = PAINT[AGENT]
    return tile
