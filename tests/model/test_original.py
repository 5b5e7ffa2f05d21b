"""Checkpoints of the original release give the original's numbers, and only such are read.

The fixtures hold, for nine blocks with memory detached between them, log-probabilities, penalties
and the gradients of their total; see `shared/fixtures/README.md` of the project.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from expire_span import AdaptiveSpan, Compressive, ExpireSpan, FixedSpan, Transformer, load_original
from expire_span.model.config import AnyMemory
from expire_span.model.original import original_names

FIXTURES = Path(__file__).parent.parent / "fixtures"
BLOCK, BLOCKS = 16, 9
POLICIES: dict[str, AnyMemory] = {
    "expire": ExpireSpan(48, 6, penalty=0.005),
    "fixed": FixedSpan(32),
    "adaptive": AdaptiveSpan(32, 6, penalty=0.005),
    "compressive": Compressive(32, 6, 4),
    "prenorm": ExpireSpan(48, 6, penalty=0.005, divisor=4),
}
every_fixture = pytest.mark.parametrize("name", POLICIES)


def load(name: str, **changes: Any) -> Transformer:
    settings = {"heads": 4, "memory": POLICIES[name], "block": BLOCK} | changes
    return load_original(FIXTURES / f"original_{name}.ckpt", **settings)


def expected_numbers(name: str) -> dict[str, Any]:
    return torch.load(FIXTURES / f"original_{name}.expected", weights_only=True)


def as_original(name: str, gradient: Tensor, model: Transformer) -> Tensor:
    """Our gradient by the original's tensor of this name."""
    if name.endswith("key_pe"):
        return gradient.T.flip(-1)[None]
    if name.endswith("span_predictor.bias"):
        return gradient * model.config.memory.divisor
    if name.endswith("size_ratio"):
        return gradient[:, None, None]
    return gradient


@every_fixture
def test_nine_blocks_give_the_numbers_of_the_original(name: str) -> None:
    model, expected = load(name), expected_numbers(name)
    tokens = expected["tokens"]
    memory, total = model.start(len(tokens)), torch.zeros(())
    for n in range(BLOCKS):
        inputs = tokens[:, n * BLOCK : (n + 1) * BLOCK]
        targets = tokens[:, n * BLOCK + 1 : (n + 1) * BLOCK + 1]
        step = model(inputs, memory)
        memory = step.memory.detach()
        found = F.log_softmax(step.logits, dim=-1)
        torch.testing.assert_close(found, expected["logp"][n], rtol=0, atol=1e-5)
        assert step.penalty.item() == pytest.approx(expected["penalty"][n], rel=0, abs=1e-7)
        total = total + model.head.nll(step.hidden, targets).mean() + step.penalty
    assert total.item() == pytest.approx(expected["total"], rel=0, abs=2e-5)

    total.backward()
    ours = original_names(model.config)
    for theirs, gradient in expected["grads"].items():
        found = model.get_parameter(ours[theirs]).grad
        assert found is not None
        torch.testing.assert_close(
            as_original(theirs, found, model), gradient, rtol=0, atol=2e-6, msg=theirs
        )
    compared = {ours[theirs] for theirs in expected["grads"]}
    assert compared == dict(model.named_parameters()).keys()


@every_fixture
def test_settings_come_from_the_shapes(name: str) -> None:
    config = load(name).config
    assert (config.vocab, config.layers, config.width, config.feedforward) == (50, 3, 32, 48)
    assert config.norm == ("pre" if name == "prenorm" else "post")
    assert config.start == "zeros"
    assert config.block == BLOCK


def test_the_block_of_an_expire_span_file_is_told_by_its_position_table() -> None:
    assert load("expire", block=None).config.block == BLOCK


@pytest.mark.parametrize("name", ["fixed", "adaptive", "compressive"])
def test_other_files_need_a_block_length(name: str) -> None:
    with pytest.raises(ValueError, match=r"^The file does not say .* pass block=\.$"):
        load(name, block=None)


@pytest.fixture
def rewritten(tmp_path: Path) -> Callable[..., Path]:
    """Write a fixture's checkpoint again after a change to its `model`."""

    def rewrite(name: str, change: Callable[[dict[str, Tensor]], Any]) -> Path:
        content = torch.load(FIXTURES / f"original_{name}.ckpt", weights_only=True)
        change(content["model"])
        torch.save(content, tmp_path / "changed.ckpt")
        return tmp_path / "changed.ckpt"

    return rewrite


def test_a_ratio_shared_by_all_heads_is_spread_over_them(rewritten: Callable[..., Path]) -> None:
    def share(tensors: dict[str, Tensor]) -> None:
        for n in range(3):
            tensors[f"module.layers.{n}.attn.attn.adaptive_span.mask.size_ratio"] = torch.tensor(
                [0.25 * (n + 1)]
            )

    path = rewritten("adaptive", share)
    model = load_original(path, heads=4, memory=POLICIES["adaptive"], block=BLOCK)
    assert [layer.keeper.ratio.tolist() for layer in model.layers] == [
        [0.25] * 4,
        [0.5] * 4,
        [0.75] * 4,
    ]


QUERY = "module.layers.1.attn.proj_query.weight"
POSITIONS = "module.layers.2.attn.attn.key_pe"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.update(extra=torch.zeros(1)), "unknown: extra"),
        (lambda t: t.update({"module.a.b": torch.zeros(1)}), "unknown: a.b"),
        (lambda t: t.pop(QUERY), r"missing: layers\.1\.attn\.proj_query\.weight"),
        (
            lambda t: t.update({QUERY: torch.zeros(32, 31)}),
            r"misshapen: layers\.1\.attn\.proj_query\.weight \(holds \[32, 31\], .*\[32, 32\]\)",
        ),
        (
            lambda t: t.update({POSITIONS: torch.zeros(1, 8, 32)}),
            r"not the same in every layer: attn\.attn\.key_pe",
        ),
        (
            lambda t: (t.pop(QUERY), t.update(extra=torch.zeros(1))),
            r"unknown: extra; missing: layers\.1\.attn\.proj_query\.weight",
        ),
    ],
    ids=["unknown", "unknown in the model", "missing", "misshapen", "uneven", "two at once"],
)
def test_names_that_do_not_fit_are_listed(
    rewritten: Callable[..., Path], change: Callable[[dict[str, Tensor]], Any], complaint: str
) -> None:
    path = rewritten("fixed", change)
    with pytest.raises(ValueError, match=rf"does not fit these settings; {complaint}\.$"):
        load_original(path, heads=4, memory=FixedSpan(32), block=BLOCK)


@pytest.mark.parametrize("name", ["module.in_emb.weight", "module.layers.0.attn.attn.key_pe"])
def test_a_file_without_what_tells_its_sizes_is_refused(
    rewritten: Callable[..., Path], name: str
) -> None:
    path = rewritten("fixed", lambda tensors: tensors.pop(name))
    with pytest.raises(ValueError, match=rf"no {name.removeprefix('module.')}\.$"):
        load_original(path, heads=4, memory=FixedSpan(32), block=BLOCK)


@pytest.mark.parametrize(
    ("name", "memory"),
    [
        ("fixed", FixedSpan(16)),
        ("compressive", Compressive(32, 5, 4)),
        ("fixed", ExpireSpan(48, 6)),
        ("expire", FixedSpan(16)),
        ("fixed", AdaptiveSpan(32, 6)),
    ],
)
def test_a_policy_that_is_not_the_files_is_refused(name: str, memory: AnyMemory) -> None:
    with pytest.raises(ValueError, match=r"does not fit these settings; .*\.$"):
        load(name, memory=memory)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^There is no checkpoint at .*: check the path\.$"):
        load_original(tmp_path / "none.ckpt", heads=4, memory=FixedSpan(32), block=BLOCK)


class TouchesAFile:
    """Code that a pickle would run when it is read."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


def test_code_in_a_file_is_never_run(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    path = tmp_path / "evil.ckpt"
    torch.save({"model": {"in_emb.weight": torch.zeros(2, 2)}, "more": TouchesAFile(touched)}, path)
    with pytest.raises(ValueError, match="without running code from it"):
        load_original(path, heads=4, memory=FixedSpan(32), block=BLOCK)
    assert not touched.exists()
    torch.load(path, weights_only=False)
    assert touched.exists()  # so the file was dangerous indeed


@pytest.mark.parametrize(
    "content", [[1, 2], {"epoch": 1}, {"model": 3}, {"model": {"in_emb.weight": 3}}], ids=str
)
def test_a_file_that_holds_no_model_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match=r"it has no 'model' tensors\.$"):
        load_original(tmp_path / "other.ckpt", heads=4, memory=FixedSpan(32), block=BLOCK)


def test_a_file_that_cannot_be_read_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "text.ckpt"
    path.write_text("not a checkpoint")
    with pytest.raises(ValueError, match=r"^[^\n]* is not a checkpoint [^\n]*\.$"):
        load_original(path, heads=4, memory=FixedSpan(32), block=BLOCK)
