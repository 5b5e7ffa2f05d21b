"""Which blocks are captured and replayed; the graphs themselves need a GPU (`test_gpu.py`)."""

from types import SimpleNamespace

from expire_span.model.transformer import Transformer
from expire_span.training.replay import LATELY, Replay
from small_runs import small_experiment


class Counting(Replay):
    """Counts captures and replays of shapes instead of making them."""

    def __init__(self, most: int = 4):
        super().__init__(Transformer(small_experiment().model), read=None, most=most)
        self.captured = 0

    def see(self, shapes: str) -> bool:
        if self.worth_capturing(shapes):
            self._graphs[shapes] = None
            self.captured += 1
        self._lately.append(shapes)
        return shapes in self._graphs


def test_shapes_that_last_are_captured_once_and_then_replayed() -> None:
    replay = Counting()
    found = [replay.see("a") for _ in range(20)]
    assert found == [False] + [True] * 19
    assert replay.captured == 1


def test_shapes_that_never_come_again_are_not_captured() -> None:
    replay = Counting()
    assert not any(replay.see(str(n)) for n in range(50))
    assert replay.captured == 0


def test_parts_that_take_turns_are_all_replayed() -> None:
    replay = Counting()
    found = [replay.see("abcd"[n % 4]) for n in range(100)]
    assert all(found[16:])
    assert replay.captured == 4


def test_more_shapes_than_graphs_do_not_drive_each_other_out() -> None:
    replay = Counting(most=4)
    for n in range(500):
        replay.see("abcde"[n % 5])
    assert replay.captured == 4


def test_a_graph_that_is_not_used_any_more_gives_way() -> None:
    replay = Counting(most=1)
    for shapes in "a" * 10 + "b" * (LATELY + 1):
        replay.see(shapes)
    assert replay.see("b")
    assert not replay.see("a")


class Pretending(Replay):
    """Reads and replays nothing, but counts."""

    def __init__(self) -> None:
        model = Transformer(small_experiment().model)
        done = SimpleNamespace(objective=SimpleNamespace(backward=lambda: None))
        super().__init__(model, read=lambda work: done)

    def _capture(self, work: object) -> SimpleNamespace:
        return SimpleNamespace(replay=lambda work: None)


def test_the_share_of_replayed_blocks_is_that_since_the_last_look() -> None:
    replay = Pretending()

    def read(shapes: str) -> None:
        replay(SimpleNamespace(shapes=lambda: (shapes,), memory=SimpleNamespace(clock=800)))

    assert replay.share_since_last() == 0
    for shapes in "aaab":
        read(shapes)
    assert replay.share_since_last() == 0.5
    assert replay.replayed == 2
    read("a")
    assert replay.share_since_last() == 1


def test_the_first_blocks_of_a_stream_are_not_captured_though_their_shapes_come_again() -> None:
    """They run uncompiled: a graph of them would go on doing so."""
    replay, block = Pretending(), small_experiment().model.block
    clocks = [0, 0, block, block, 2 * block, 2 * block]  # two parts of a batch
    for clock in clocks:
        replay(SimpleNamespace(shapes=lambda: ("a",), memory=SimpleNamespace(clock=clock)))
    assert replay.replayed == 1
