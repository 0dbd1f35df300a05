"""Triton: between the qkv product and attention. Rotates q; writes k, rotated, and v to their slots of the KV pools.

    h' = h / sqrt(mean(h²) + eps) * gain                                 q and k, with norms (Qwen3) only
    h' = (h - mean(h)) / sqrt(var(h) + eps) * gain + bias                k, with a norm of its own (DeepSeek V3.2) only
    (a, b) → (a·cos - b·sin, b·cos + a·sin)                              for each pair of the first rotary_dim numbers
    h" = h' / sqrt(mean(h'²) + unit_eps)                                 q and k, with a unit norm (Llama 4) only
    q' = q" · growth[position]                                           with such a table only
Pairs are numbers (i, i + rotary_dim / 2) as checkpoints have them, or (2i, 2i + 1) if `interleaved`, as
worker/cpu/builder.py orders rows of weights; numbers from rotary_dim on stay. cos and sin come from tables, so that
scaled variants (linear, llama3) are other tables and no other code. Formula: Su et al. 2021, RoFormer. In float32,
rounded once.

A token's slot is block · block_size + offset; -1, as rows have that only fill up a captured batch, writes nothing, but
q is rotated all the same (at its position, which must be in the tables). Pools of 8 bits get e4m3 and scales
(quantised_kv.py), also rounded once. One program takes some heads of one token: the grid follows from shapes alone.
Compiled ahead of time and checked in the interpreter; not run on a GPU yet. Knows tensors only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..checked import once_for_each_form
from .quantised_kv import E4M3, Scales, check_scales, encode, scale_code, scale_of

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PROGRAM = 512  # numbers of one program, whatever the head is: one warp, 16 numbers a thread
WIDEST = 1024  # numbers of a head


class RotaryTables(NamedTuple):
    """Cosines and sines of the angles of each position, both float32 [positions, rotary_dim / 2], contiguous."""

    cos: Tensor
    sin: Tensor


class Pools(NamedTuple):
    """One layer's memory; any strides, but the last is 1."""

    keys: Tensor  # [blocks, kv_heads, block_size, head_dim]
    values: Tensor  # [blocks, kv_heads, block_size, value_dim]
    scales: Scales | None = None  # of keys and values of 8 bits
    index_keys: Tensor | None = None  # [blocks, 1, block_size, dim]: keys of what chooses the tokens that are seen


class Norms(NamedTuple):
    """Gains of the norms of q and k, each [head_dim], of any of the types; the same for all heads."""

    q_gain: Tensor
    k_gain: Tensor
    eps: float


class KeyNorm(NamedTuple):
    """Of a norm of k alone, which sees differences from their mean; each [head_dim], of any of the types."""

    gain: Tensor
    bias: Tensor
    eps: float


@triton.jit
def narrow(numbers, factor, kind: tl.constexpr, SCALED: tl.constexpr):
    """As they are stored."""
    if SCALED:
        return encode(numbers * factor)
    else:
        return numbers.to(kind)


@triton.jit
def turn_heads(
    source, target, scales, there, gain, bias, cos, sin, eps, unit_eps, longer,
    HEAD_DIM: tl.constexpr, ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr,
    CENTRED: tl.constexpr, UNIT: tl.constexpr, GROWS: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    """Norms and rotation of the heads that start at `source`, to `target`, both [heads]; cos and sin are [1, PAIRS].

    GROWS: times `longer`. SCALED: as e4m3, and their scales to `scales` [heads].
    """
    pair = tl.arange(0, PAIRS)
    first = 2 * pair if INTERLEAVED else pair
    second = first + 1 if INTERLEAVED else pair + ROTARY // 2
    inside = there[:, None] & (pair < ROTARY // 2)[None, :]
    a = tl.load(source[:, None] + first[None, :], mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source[:, None] + second[None, :], mask=inside, other=0.0).to(tl.float32)
    if REST > 0:
        other = ROTARY + tl.arange(0, REST)
        others = there[:, None] & (other < HEAD_DIM)[None, :]
        c = tl.load(source[:, None] + other[None, :], mask=others, other=0.0).to(tl.float32)
    if CENTRED:
        total = tl.sum(a + b, 1)
        if REST > 0:
            total += tl.sum(c, 1)
        mean = (total / HEAD_DIM)[:, None]
        a, b = tl.where(inside, a - mean, 0.0), tl.where(inside, b - mean, 0.0)
        if REST > 0:
            c = tl.where(others, c - mean, 0.0)
    if NORM:
        squares = tl.sum(a * a + b * b, 1)
        if REST > 0:
            squares += tl.sum(c * c, 1)
        scale = (1.0 / tl.sqrt_rn(squares / HEAD_DIM + eps))[:, None]
        paired = pair < ROTARY // 2
        a = a * scale * tl.load(gain + first, mask=paired, other=0.0).to(tl.float32)[None, :]
        b = b * scale * tl.load(gain + second, mask=paired, other=0.0).to(tl.float32)[None, :]
        if REST > 0:
            c = c * scale * tl.load(gain + other, mask=other < HEAD_DIM, other=0.0).to(tl.float32)[None, :]
    if CENTRED:
        a += tl.load(bias + first, mask=paired, other=0.0).to(tl.float32)[None, :]
        b += tl.load(bias + second, mask=paired, other=0.0).to(tl.float32)[None, :]
        if REST > 0:
            c += tl.load(bias + other, mask=other < HEAD_DIM, other=0.0).to(tl.float32)[None, :]
    turned, second_turned = a * cos - b * sin, b * cos + a * sin
    if UNIT:
        squares = tl.sum(turned * turned + second_turned * second_turned, 1)
        if REST > 0:
            squares += tl.sum(c * c, 1)
        longer = (1.0 / tl.sqrt_rn(squares / HEAD_DIM + unit_eps))[:, None] * longer
    if UNIT or GROWS:
        turned, second_turned = turned * longer, second_turned * longer
        if REST > 0:
            c = c * longer
    factor = there
    if SCALED:
        peak = tl.max(tl.maximum(tl.abs(turned), tl.abs(second_turned)), 1)
        if REST > 0:
            peak = tl.maximum(peak, tl.max(tl.abs(c), 1))
        code = scale_code(peak)
        tl.store(scales, code.to(tl.uint8), mask=there)
        factor = scale_of(254 - code)[:, None]
    kind = target.dtype.element_ty
    tl.store(target[:, None] + first[None, :], narrow(turned, factor, kind, SCALED), mask=inside)
    tl.store(target[:, None] + second[None, :], narrow(second_turned, factor, kind, SCALED), mask=inside)
    if REST > 0:
        tl.store(target[:, None] + other[None, :], narrow(c, factor, kind, SCALED), mask=others)


@triton.jit
def rotary_kv_kernel(
    q, k, v, out, keys, values, key_scales, value_scales, positions, slots, cos_table, sin_table, q_gain, k_gain,
    k_bias, eps, unit_eps, growth, q_token, q_head, k_token, k_head, v_token, v_head, out_token, out_head,
    keys_block, keys_head, keys_slot, values_block, values_head, values_slot, scales_block, scales_head,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROTARY: tl.constexpr, INTERLEAVED: tl.constexpr, NORM: tl.constexpr, CENTRED: tl.constexpr, UNIT: tl.constexpr,
    GROWS: tl.constexpr, TILE: tl.constexpr, KV_TILE: tl.constexpr, PAIRS: tl.constexpr, REST: tl.constexpr,
    FULL: tl.constexpr, SCALED: tl.constexpr, VALUE_DIM: tl.constexpr,
):  # fmt: skip
    """Some heads of one token: first programs for TILE heads of q, then those for KV_TILE heads of k and v."""
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    position = tl.load(positions + token).to(tl.int64)
    pair = tl.arange(0, PAIRS)
    angle = position * (ROTARY // 2) + pair
    cos = tl.load(cos_table + angle, mask=pair < ROTARY // 2, other=0.0)[None, :]
    sin = tl.load(sin_table + angle, mask=pair < ROTARY // 2, other=0.0)[None, :]
    q_tiles: tl.constexpr = (HEADS + TILE - 1) // TILE
    if tile < q_tiles:
        longer = 1.0
        if GROWS:
            longer = tl.load(growth + position)
        head = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
        turn_heads(
            q + token * q_token + head * q_head, out + token * out_token + head * out_head, head, head < HEADS,
            q_gain, q_gain, cos, sin, eps, unit_eps, longer,
            HEAD_DIM, ROTARY, INTERLEAVED, NORM, False, UNIT, GROWS, PAIRS, REST, False,
        )  # fmt: skip
    else:
        slot = tl.load(slots + token)
        if slot >= 0:
            block, at = slot // BLOCK_SIZE, slot % BLOCK_SIZE
            head = (tile - q_tiles).to(tl.int64) * KV_TILE + tl.arange(0, KV_TILE)
            there = head < KV_HEADS
            scale_at = block * scales_block + head * scales_head + at
            turn_heads(
                k + token * k_token + head * k_head,
                keys + block * keys_block + head * keys_head + at * keys_slot, key_scales + scale_at, there,
                k_gain, k_bias, cos, sin, eps, unit_eps, 1.0,
                HEAD_DIM, ROTARY, INTERLEAVED, NORM or CENTRED, CENTRED, UNIT, False, PAIRS, REST, SCALED,
            )  # fmt: skip
            if VALUE_DIM > 0:
                number = tl.arange(0, FULL)[None, :]
                inside = there[:, None] & (number < VALUE_DIM)
                value = tl.load(v + (token * v_token + head * v_head)[:, None] + number, mask=inside)
                if SCALED:
                    value = tl.where(inside, value.to(tl.float32), 0.0)
                    code = scale_code(tl.max(tl.abs(value), 1))
                    tl.store(value_scales + scale_at, code.to(tl.uint8), mask=there)
                    value = encode(value * scale_of(254 - code)[:, None])
                target = values + (block * values_block + head * values_head + at * values_slot)[:, None] + number
                tl.store(target, value, mask=inside)


def rotate_and_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    slots: Tensor,
    tables: RotaryTables,
    pools: Pools,
    *,
    norms: Norms | None = None,
    key_norm: KeyNorm | None = None,
    out: Tensor | None = None,
    interleaved: bool = False,
    unit_eps: float | None = None,
    growth: Tensor | None = None,
) -> Tensor:
    """Rotated q, in `out` or in place; k, rotated, and v go to `slots` of `pools`.

    q           [tokens, heads, head_dim], float32, float16 or bfloat16; parts of a merged product will do
    k           [tokens, kv_heads, head_dim], v [tokens, kv_heads, value_dim], of the same type; they stay as they are.
                A value_dim of 0: there are none
    positions   [tokens], int32 or int64, below the length of the tables
    slots       [tokens], int64; -1: k and v of this token are not written; no other slot twice
    out         as q; q itself if there is none
    growth      float32 [positions], as long as the tables
    norms, key_norm   one of them at most
    """
    out = q if out is None else out
    _check(q, k, v, out, pools)
    _check_tokens(q, positions, slots)
    _check_tables(q, tables, norms, key_norm, growth)
    tokens, heads, head_dim = q.shape
    if not tokens:
        return out
    rotary = 2 * tables.cos.shape[1]
    value_dim = pools.values.shape[3]
    full = triton.next_power_of_2(max(1, value_dim))
    tile, kv_tile = (max(1, PROGRAM // triton.next_power_of_2(size)) for size in (head_dim, max(head_dim, value_dim)))
    kv_heads, block_size = pools.keys.shape[1:3]
    q_gain, k_gain, eps = norms if norms is not None else (q, k, 0.0)
    k_gain, k_bias, eps = key_norm if key_norm is not None else (k_gain, k, eps)
    keys, values, scales, _ = pools
    if scales is not None:
        keys, values = keys.view(torch.uint8), values.view(torch.uint8)
    rotary_kv_kernel[(tokens, triton.cdiv(heads, tile) + triton.cdiv(kv_heads, kv_tile))](
        q, k, v, out, keys, values, *((keys, values) if scales is None else scales), positions, slots, *tables,
        q_gain, k_gain, k_bias, eps, 0.0 if unit_eps is None else unit_eps, tables.cos if growth is None else growth,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *out.stride()[:2],
        *keys.stride()[:3], *values.stride()[:3], *((0, 0) if scales is None else scales.keys.stride()[:2]),
        HEADS=heads, KV_HEADS=kv_heads, BLOCK_SIZE=block_size, HEAD_DIM=head_dim, ROTARY=rotary,
        INTERLEAVED=interleaved, NORM=norms is not None, CENTRED=key_norm is not None, UNIT=unit_eps is not None,
        GROWS=growth is not None, TILE=tile, KV_TILE=kv_tile, PAIRS=triton.next_power_of_2(rotary // 2),
        REST=triton.next_power_of_2(head_dim - rotary) if rotary < head_dim else 0, FULL=full,
        SCALED=scales is not None, VALUE_DIM=value_dim, num_warps=1,
    )  # fmt: skip
    return out


@once_for_each_form
def _check(q: Tensor, k: Tensor, v: Tensor, out: Tensor, pools: Pools) -> None:
    if q.dim() != 3 or q.dtype not in DTYPES or not 0 < q.shape[2] <= WIDEST:
        raise ValueError(f"q {q.dtype}{list(q.shape)} must be floats [tokens, heads, head_dim], of at most {WIDEST}")
    tokens, _, head_dim = q.shape
    if pools.keys.dim() != 4 or pools.values.dim() != 4:
        raise ValueError(f"keys {list(pools.keys.shape)} must be [blocks, kv_heads, block_size, head_dim]")
    blocks, kv_heads, block_size, _ = pools.keys.shape
    value_dim = pools.values.shape[3]
    memory = {"keys": (blocks, kv_heads, block_size, head_dim), "values": (blocks, kv_heads, block_size, value_dim)}
    tensors = {"q": (q, q.shape), "out": (out, q.shape), "k": (k, (tokens, kv_heads, head_dim))}
    tensors |= {"v": (v, (tokens, kv_heads, value_dim))}
    tensors |= {"keys": (pools.keys, memory["keys"]), "values": (pools.values, memory["values"])}
    check_scales(pools.keys, pools.values, pools.scales)
    for name, (tensor, shape) in tensors.items():
        kind = E4M3 if pools.scales is not None and name in memory else q.dtype
        if tensor.shape != shape or tensor.dtype != kind or tensor.device != q.device:
            raise ValueError(f"{name} {tensor.dtype}{list(tensor.shape)} must be {kind}{list(shape)}")
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} must have the numbers of a head side by side")


@once_for_each_form
def _check_tokens(q: Tensor, positions: Tensor, slots: Tensor) -> None:
    kinds = {"positions": (positions, (torch.int32, torch.int64)), "slots": (slots, (torch.int64,))}
    for name, (tensor, dtypes) in kinds.items():
        fits = tensor.shape == q.shape[:1] and tensor.dtype in dtypes and tensor.device == q.device
        if not fits or not tensor.is_contiguous():
            raise ValueError(f"{name} {tensor.dtype}{list(tensor.shape)} does not fit {q.shape[0]} tokens")


@once_for_each_form
def _check_tables(
    q: Tensor, tables: RotaryTables, norms: Norms | None, key_norm: KeyNorm | None, growth: Tensor | None
) -> None:
    for name, table in tables._asdict().items():
        fits = table.dim() == 2 and table.shape == tables.cos.shape and 0 < 2 * table.shape[1] <= q.shape[2]
        if not fits or table.dtype != torch.float32 or not table.is_contiguous() or table.device != q.device:
            raise ValueError(f"{name} {table.dtype}{list(table.shape)} does not fit heads of {q.shape[2]}")
    if growth is not None and (growth.shape != tables.cos.shape[:1] or growth.dtype != torch.float32):
        raise ValueError(f"growth {growth.dtype}{list(growth.shape)} does not fit {len(tables.cos)} positions")
    gains = {} if norms is None else {"q_gain": norms.q_gain, "k_gain": norms.k_gain}
    gains |= {} if key_norm is None else {"key_norm's gain": key_norm.gain, "key_norm's bias": key_norm.bias}
    if norms is not None and key_norm is not None:
        raise ValueError("norms have a gain for k, which has a norm of its own")
    for name, gain in gains.items():
        if gain.shape != q.shape[2:] or gain.dtype not in DTYPES or gain.stride(0) != 1 or gain.device != q.device:
            raise ValueError(f"{name} {gain.dtype}{list(gain.shape)} does not fit heads of {q.shape[2]}")
