"""What stands between products, and the layers of plain decoders as a whole, by layers.c; all of it in float32."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .attention import NativeAttention
from .heads import TurnedHeads
from .library import LINE, Library
from .linear import PACKED, LinearData, NativeLinear
from .lora import LoraAdded

_POINTER, _NUMBER, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class RowOperations:
    """Each row follows from itself alone, whatever stands beside it."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._norm = library.function("norm_rows", _POINTER, _POINTER, _POINTER, _FLOAT, _NUMBER, _NUMBER, _POINTER)
        of_heads = (_POINTER, _POINTER, _POINTER)
        self._norm_heads = library.function("norm_heads", *of_heads, _FLOAT, _NUMBER, _NUMBER, _NUMBER, _NUMBER)
        self._rotate = library.function("rotate_rows", *of_heads, _NUMBER, _NUMBER, _NUMBER, _NUMBER)
        self._silu = library.function("silu_rows", _POINTER, _POINTER, _NUMBER, _NUMBER, _POINTER)

    def norm(self, x: Tensor, gain: Tensor, floor: float) -> Tensor:
        """Of x [rows, size]; `gain` [size] has the root of the size in it, `floor` is eps times the size."""
        x = x.contiguous()
        out = torch.empty_like(x)
        rows, size = x.shape
        self._norm(self.library.pool, x.data_ptr(), gain.data_ptr(), floor, size, rows, out.data_ptr())
        return out

    def norm_in_place(self, x: Tensor, gain: Tensor, floor: float) -> None:
        """Of x [rows, …, size], whose rows lie anywhere; `gain` has its shape without rows."""
        size, rows = x.shape[-1], len(x)
        heads = x[0].numel() // size
        assert x[0].is_contiguous() and gain.numel() == heads * size
        where = (x.data_ptr(), gain.data_ptr())
        self._norm_heads(self.library.pool, *where, floor, size, heads, x.stride(0), rows)

    def rotate(self, heads: Tensor, rotations: Tensor) -> None:
        """`heads` [tokens, heads, head_dim] by `rotations` [tokens, 1, head_dim / 2] of complex numbers."""
        tokens, count, head_dim = heads.shape
        assert heads[0].is_contiguous() and rotations.is_contiguous()
        where = (heads.data_ptr(), rotations.data_ptr())
        self._rotate(self.library.pool, *where, count, head_dim, heads.stride(0), tokens)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) · up of rows that have both, one behind the other."""
        gate_up = gate_up.contiguous()
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, size)
        self._silu(self.library.pool, gate_up.data_ptr(), size, rows, out.data_ptr())
        return out


class PlainLayer(NamedTuple):
    """What a layer is made of; of norms their gains, with the root of the size in them."""

    qkv: NativeLinear
    out: NativeLinear
    gate_up: NativeLinear
    down: NativeLinear
    attention_norm: Tensor | None
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    mlp_norm: Tensor | None
    rotations: Tensor | None  # complex [positions, head_dim / 2]
    heads: TurnedHeads | None = None  # in place of qk_norm and rotations


class PlainShape(NamedTuple):
    """What all layers have."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    eps: float


class _Layer(ctypes.Structure):
    """layers.h's layer."""

    _fields_ = (
        *((name, _POINTER) for name in ("qkv", "out", "gate_up", "down", "attention_norm", "qk_norm", "mlp_norm")),
        *((name, _POINTER) for name in ("rotations", "rules")),
        ("number", _NUMBER),
    )


class _Step(ctypes.Structure):
    """layers.h's layer_step."""

    _fields_ = (
        *((name, _NUMBER) for name in ("rows", "hidden", "heads", "kv_heads", "head_dim", "inner")),
        *((name, _FLOAT) for name in ("floor", "qk_floor")),
        *((name, _POINTER) for name in ("positions", "x", "qkv", "mixed", "gate_up", "ready")),
        *((name, _POINTER) for name in ("cosines", "sines", "lora")),
    )


Tables = tuple[Tensor | None, Tensor | None, Tensor]  # cosines and sines of rows, and their slots
Attend = Callable[[int, Tensor], Tensor]  # of layer and rows of q, k and v: what comes of it, [rows, heads · head_dim]


class PlainLayers:
    """All layers of a decoder, for steps of few rows."""

    def __init__(self, library: Library, shape: PlainShape, layers: Sequence[PlainLayer]) -> None:
        self.library, self.shape, self.kept = library, shape, layers
        self._run = library.function("layers_run", _POINTER, _POINTER, _POINTER, ctypes.POINTER(_Step))
        self._made = [_Layer(*(_place(part) for part in layer), number) for number, layer in enumerate(layers)]
        self._places = [ctypes.addressof(made) for made in self._made]
        row_bytes = library.size("linear_row_bytes", ctypes.POINTER(LinearData))
        self._row_bytes = max(int(row_bytes(ctypes.byref(linear.data))) for linear in self.linears)
        self._step = _Step(0, *shape[:5], shape.eps * shape.hidden, shape.eps * shape.head_dim, *[None] * 9)
        self._where = ctypes.byref(self._step)
        whole = (_POINTER, _POINTER, _POINTER, _NUMBER, ctypes.POINTER(_Step), _POINTER, _POINTER, _POINTER)
        self._run_all = library.function("layers_step", *whole)
        self._all = (_Layer * len(layers))(*self._made)
        self._plan = ctypes.create_string_buffer(library.size("layers_plan_bytes", _NUMBER)(len(layers)))
        self._qkv, self._mixed, self._gate_up = (torch.empty(0, 1) for _ in range(3))

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._places)

    @property
    def linears(self) -> list[NativeLinear]:
        """q k v, out, gate and up, down of each layer: what LoraAdded of a step is of."""
        return [linear for layer in self.kept for linear in layer[:4]]

    def _ready(self, rows: int, lora: LoraAdded | None, more: int = 0) -> int:
        """Memory for so many rows that are made ready; behind it the address of `more` bytes."""
        own, step = (rows + PACKED) * self._row_bytes, self._step
        more += -more % LINE
        ready = self.library.scratch(own + more + (lora.size if lora is not None else 0))
        step.ready = ready
        step.lora = None if lora is None else lora.place(ready + own + more, rows)
        return ready + own

    def _begin(self, x: Tensor, positions: Tensor) -> Tensor:
        """What a step of x is given; memory for q, k and v."""
        rows, step, shape = len(x), self._step, self.shape
        if len(self._qkv) < rows:
            self._qkv = torch.empty(rows, (shape.heads + 2 * shape.kv_heads) * shape.head_dim)
            self._mixed = torch.empty(rows, shape.heads * shape.head_dim)
            self._gate_up = torch.empty(rows, 2 * shape.inner)
        qkv = self._qkv[:rows]
        step.rows, step.positions, step.x = rows, positions.data_ptr(), x.data_ptr()
        step.qkv, step.gate_up = qkv.data_ptr(), self._gate_up.data_ptr()
        return qkv

    def forward_all(
        self,
        x: Tensor,
        positions: Tensor,
        slots: Tensor,
        attention: NativeAttention,
        tables: tuple[Tensor | None, Tensor | None] = (None, None),
        lora: LoraAdded | None = None,
    ) -> None:
        """x becomes what the last layer makes of it; `attention` is that of all layers. One call for all. `tables` of
        cosines and sines are of layers whose heads turn by them."""
        qkv, step, library = self._begin(x, positions), self._step, self.library
        step.cosines, step.sines = (None if part is None else part.data_ptr() for part in tables)
        behind = self._ready(len(x), lora, attention.size)
        step.mixed = self._mixed.data_ptr()
        places = attention.prepare(qkv, self._mixed, slots, behind)
        count = len(self._places)
        of_layers = (ctypes.addressof(self._all), places.memory, count)
        plan = ctypes.addressof(self._plan)
        self._run_all(library.pool, *of_layers, self._where, places.attention, places.rows, plan)

    def forward_one(
        self,
        number: int,
        x: Tensor,
        tables: Tables,
        attention: NativeAttention,
        inner: int,
        lora: LoraAdded | None = None,
    ) -> None:
        """One layer, whose heads turn by `tables` of cosines and sines; `inner` is its place in the KV memory."""
        cosines, sines, slots = tables
        qkv, step, library = self._begin(x, slots), self._step, self.library
        step.cosines, step.sines = (None if part is None else part.data_ptr() for part in (cosines, sines))
        behind = self._ready(len(x), lora, attention.size)
        step.mixed = self._mixed.data_ptr()
        places = attention.prepare(qkv, self._mixed, slots, behind)
        memory = places.memory + inner * attention.pool.place_bytes
        of_layer = (self._places[number], memory, 1)
        plan = ctypes.addressof(self._plan)
        self._run_all(library.pool, *of_layer, self._where, places.attention, places.rows, plan)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend, lora: LoraAdded | None = None) -> None:
        """The same with attention that is called for each layer."""
        rows, step, qkv = len(x), self._step, self._begin(x, positions)
        pool, run, where, done = self.library.pool, self._run, self._where, None
        for number, place in enumerate(self._places):
            self._ready(rows, lora)
            run(pool, done, place, where)
            mixed = attend(number, qkv)
            step.mixed, done = mixed.data_ptr(), place
        self._ready(rows, lora)
        run(pool, done, None, where)


def _place(part: NativeLinear | Tensor | TurnedHeads | None) -> int | None:
    if part is None:
        return None
    if isinstance(part, TurnedHeads):
        return part.address
    return ctypes.addressof(part.data) if isinstance(part, NativeLinear) else part.data_ptr()
