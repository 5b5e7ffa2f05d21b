"""METHOD.md section 1 written out over a whole stream at once: the truth that blocks must equal.

No blocks, no memory, nothing deleted: every query against every state that ever was, with times
counted from the start of the stream. Only the weights come from the model.

Shapes
    B rows, S steps of the stream, N states (zero states before the stream, then its steps)
    D model width, H heads, E head width
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from expire_span import AdaptiveSpan, Compressive, ExpireSpan, FixedSpan, Transformer


@dataclass(frozen=True)
class Truth:
    """What a stream should give."""

    hidden: Tensor  # [B, S, D]
    live: Tensor  # [layers, B, S], keys with weight above 0, mean over heads
    price: Tensor  # [layers, B, S], each query's share of the penalty
    spans: tuple[Tensor, ...]  # for each layer e of every state [B, N], if memories have spans

    def penalty(self, begin: int, end: int) -> Tensor:
        """Penalty of a call that reads steps `begin` to `end`."""
        return self.price[:, :, begin:end].mean(dim=(1, 2)).sum()


@dataclass(frozen=True)
class Pairs:
    """Every query against every state of a layer."""

    raw: Tensor  # [B, N, D]
    past: int  # how many of them stand before the stream
    distance: Tensor  # [S, N]
    seen: Tensor  # [B, 1, S, N]: earlier, of the same episode, and not cut


@dataclass(frozen=True)
class Keys:
    """What queries attend to."""

    states: Tensor  # [B, N, D], before any norm
    weight: Tensor  # [B, H or 1, S, N]
    position: Tensor  # [S, N], row of the position table, or -1


def whole_stream(
    model: Transformer, tokens: Tensor, starts: Tensor | None = None, limit: int | None = None
) -> Truth:
    """All final states of the tokens [B, S], and what memory they need."""
    states = model.inputs(tokens)
    live, prices, spans = [], [], []
    for layer in model.layers:
        pairs = _pairs(model, states, starts, limit)
        readable = layer.attention_norm if model.config.norm == "pre" else nn.Identity()
        key_sets, price, layer_spans = _policy(model, layer.keeper, readable, pairs)
        attended = _attend(layer.attention, readable, states, key_sets, model.positions)
        live.append(sum((keys.weight > 0).sum(-1).double().mean(dim=1) for keys in key_sets))
        prices.append(price)
        spans.append(layer_spans)
        states = _residual(layer, model.config.norm, states, attended)
    return Truth(model.final_norm(states), torch.stack(live), torch.stack(prices), tuple(spans))


def _pairs(model: Transformer, states: Tensor, starts: Tensor | None, limit: int | None) -> Pairs:
    batch, steps, width = states.shape
    past = 0 if model.config.start == "empty" else _zero_states(model)
    distance = torch.arange(steps)[:, None] - torch.arange(-past, steps)
    episode = torch.zeros(batch, steps) if starts is None else starts.cumsum(dim=1)
    of_state = torch.cat([torch.zeros(batch, past), episode], dim=1)
    seen = (distance >= 1) & (episode[:, :, None] == of_state[:, None, :])
    if limit is not None:
        seen = seen & (distance <= limit)
    raw = torch.cat([states.new_zeros(batch, past, width), states], dim=1)
    return Pairs(raw, past, distance, seen.unsqueeze(1))


def _zero_states(model: Transformer) -> int:
    """How many zero states stand before the stream."""
    match model.config.memory:
        case ExpireSpan():
            return model.config.block
        case FixedSpan(span) | AdaptiveSpan(max_span=span):
            return span
        case Compressive(span, compressed, rate):
            return span + compressed * rate


def _policy(
    model: Transformer, keeper: nn.Module, readable: nn.Module, pairs: Pairs
) -> tuple[list[Keys], Tensor, Tensor]:
    """Keys with their weights, the price of each query [B, S], and learned spans [B, N]."""
    raw, distance, seen = pairs.raw, pairs.distance, pairs.seen
    batch, steps = seen.shape[0], seen.shape[2]
    free, none = raw.new_zeros(batch, steps), raw.new_zeros(batch, 0)
    match policy := model.config.memory:
        case FixedSpan(span):
            return [_window(pairs, span)], free, none
        case Compressive(span):
            return [_window(pairs, span), _slots(policy, pairs)], free, none
        case AdaptiveSpan(span, ramp, alpha):
            z = keeper.ratio[:, None, None]
            weight = _ramp(1 + (z * span + 1 - distance) / ramp) * (seen & (distance <= span))
            price = free + alpha * span * z.mean()
            return [Keys(raw, weight, _rows(distance, span))], price, none
        case ExpireSpan(span, ramp, alpha):
            w, b = keeper.predictor.weight[0], keeper.predictor.bias
            spans = span * torch.sigmoid((readable(raw) @ w + b) / policy.divisor)
            left = spans[:, None, None] - distance
            weight = _ramp(1 + left / ramp) * seen
            furthest = model.config.block if policy.positions == "near" else span + ramp
            on_ramp = (weight > 0) & (weight < 1)
            price = alpha * (left * on_ramp).sum(dim=-1).squeeze(1) / ramp
            if policy.charge == "block":
                price = alpha * spans[:, pairs.past :]
            return [Keys(raw, weight, _rows(distance, furthest))], price, spans
        case _:
            raise NotImplementedError(f"Say here what the keys of a {type(policy).__name__} weigh.")


def _window(pairs: Pairs, span: int) -> Keys:
    """The last `span` states."""
    near = pairs.seen & (pairs.distance <= span)
    return Keys(pairs.raw, near.double(), _rows(pairs.distance, span))


def _slots(policy: Compressive, pairs: Pairs) -> Keys:
    """Means of `rate` states; a query at t sees the C + 1 that end at floor((t - L) / c)."""
    rate, whole = policy.rate, pairs.raw.shape[1] // policy.rate * policy.rate
    number = torch.arange(whole // rate) - pairs.past // rate
    newest = (torch.arange(pairs.seen.shape[2]) - policy.span).div(rate, rounding_mode="floor")
    back = newest[:, None] - number  # 0 for the newest slot that a query sees
    among = (back >= 0) & (back <= policy.compressed)
    every_state_seen = pairs.seen[..., :whole].unflatten(-1, (-1, rate)).all(dim=-1)
    return Keys(
        states=pairs.raw[:, :whole].unflatten(1, (-1, rate)).mean(dim=2),
        weight=(every_state_seen & among).double(),
        position=torch.where(among, policy.span + back, -1),
    )


def _ramp(height: Tensor) -> Tensor:
    """clamp(height, 0, 1), without gradient at the two ends."""
    return torch.where((height > 0) & (height < 1), height, (height >= 1).to(height.dtype))


def _rows(distance: Tensor, furthest: int) -> Tensor:
    """Row of the position table for each distance, -1 where there is none."""
    return torch.where((distance >= 1) & (distance <= furthest), distance - 1, -1)


def _attend(
    attention: nn.Module, readable: nn.Module, states: Tensor, key_sets: list[Keys], table: Tensor
) -> Tensor:
    def heads(projected: Tensor) -> Tensor:
        return projected.unflatten(-1, (attention.heads, -1))

    queries = heads(attention.query(readable(states)))
    padded = torch.cat([table, torch.zeros_like(table[:1])])  # row -1: no position
    total, mixed = 0.0, 0.0
    for keys in key_sets:
        read = readable(keys.states)
        scores = torch.einsum("bshe,bnhe->bhsn", queries, heads(attention.key(read)))
        scores = scores + torch.einsum("bshe,sne->bhsn", queries, padded[keys.position])
        mass = keys.weight * torch.exp(scores / queries.shape[-1] ** 0.5)
        total = total + mass.sum(dim=-1)
        mixed = mixed + torch.einsum("bhsn,bnhe->bshe", mass, heads(attention.value(read)))
    total = torch.where(total > 0, total, 1).transpose(1, 2)
    return attention.out((mixed / total[..., None]).flatten(-2))


def _residual(layer: nn.Module, norm: str, states: Tensor, attended: Tensor) -> Tensor:
    if norm == "pre":
        states = states + attended
        return states + layer.feedforward(layer.feedforward_norm(states))
    states = layer.attention_norm(states + attended)
    return layer.feedforward_norm(states + layer.feedforward(states))
