"""Kernels beside attention and products compile ahead of time, without spilled registers, and a multiprocessor has
what a program of each takes; no GPU is needed.

Run as a program it compiles in a process of its own, since the interpreter that other tests use is chosen at import:
what a wrapper would launch for given tensors is recorded, compiled for one architecture, and measured by ptxas.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.kernels.triton import launches
from tests.support.gpu.compilations import LONGEST_S, by_each_triton, say

TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float64: "*fp64",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.int8: "*i8",
}
SHARED = dict.fromkeys((86, 89, 120), 99 << 10) | {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # bytes of a program
STACK = {"axis_turns_kernel": 32}  # bytes in which cosines of angles above 105,615 are reduced, and of no others
FEW = 40  # bytes of a thread that may be spilled on sm_86, 89 and 120, for which Triton's code is that for sm_80
REGISTERS = 1 << 16  # of all its threads, which have 8, 16, 24 … each
QUICK = 90
KERNELS = [
    "rms_norm",
    "silu_mul",
    "rotary_kv",
    "gpu_sampling",
    "gpu_logits",
    "greedy",
    "attention.indexer",
    "linear.gemv",
    "linear.fixed_linear",
    "linear.lora",
    "linear.stored_linear",
    "linear.scaled_linear",
    "moe.routing",
    "moe.experts",
    "step_inputs",
    "drafts",
    "vision.given_rows",
    "vision.axis_turns",
]
NARROW = [
    "bias",
    "count",
    "inputs",
    "keep",
    "change",
    "propose",
    "verify",
    "follow",
    "route",
    "place",
    "key",
    "axis_turns",
]  # kernels that read little
WIDE = {"ld.global.v4.b32", ", 0x10"}  # 16 bytes a thread, to registers or (fetched ahead) to shared memory


def compiled(architecture: int, kernels: list[str], every: bool, triton: str) -> list[dict[str, Any]]:
    """What ptxas says of each variant, from a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    arguments = [str(architecture), "every" if every else "some", *kernels]
    reports: list[dict[str, Any]] = say(__file__, arguments, environment, triton)
    return reports


def check(reports: list[dict[str, Any]], kernels: list[str]) -> None:
    assert {report["module"] for report in reports} == set(kernels)
    for report in reports:
        spare = FEW if SHARED[report["architecture"]] == SHARED[86] else 0
        assert report["spilled"] <= spare and report["stack"] <= max(spare, STACK.get(report["kernel"], 0)), report
        assert 0 < report["registers"] <= 255, report
        assert report["shared"] <= SHARED[report["architecture"]], report
        assert -(-report["registers"] // 8) * 8 * 32 * report["warps"] <= REGISTERS, report


@by_each_triton
def test_one_architecture(triton: str) -> None:
    """Shapes of models, whose loads must be wide."""
    reports = compiled(QUICK, KERNELS, False, triton)
    check(reports, KERNELS)
    for report in reports:
        assert WIDE & set(report["loads"]) or report["kernel"].removesuffix("_kernel") in NARROW, report
        if report["module"] == "linear.gemv":  # it waits in its loop for what is fetched ahead; a bias comes after it
            biased = report["constants"]["BIASED"] == "True"
            assert ", 0x10" in report["loads"] and ("ld.global.b16" in report["loads"]) == biased, report


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
@by_each_triton
@pytest.mark.parametrize("architecture", SHARED)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_variant(architecture: int, kernel: str, triton: str) -> None:
    check(compiled(architecture, [kernel], True, triton), [kernel])


class Recorder:
    """Stands where a module's kernel stood, and keeps what it is launched with."""

    def __init__(self, module: Any, name: str) -> None:
        self.kernel = getattr(module, name)
        self.launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        setattr(module, name, self)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert 0 < len(grid) <= 3 and all(0 < size < 65536 for size in grid[1:])
        return lambda *arguments, **options: self.launches.append((arguments, options))


def source_of(kernel: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """What the just-in-time compiler would make of a launch: integers of 1 and multiples of 16 are specialised."""
    from triton.compiler import ASTSource

    given = dict(zip(kernel.arg_names, arguments, strict=False)) | options
    signature: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    constants = {}
    for index, parameter in enumerate(kernel.params):
        value = given.pop(parameter.name)
        if parameter.is_constexpr or (isinstance(value, int) and value == 1 and not parameter.do_not_specialize):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        if isinstance(value, tuple):  # of tensors
            signature[parameter.name] = tuple(TYPES[one.dtype] for one in value)
            divided = (place for place, one in enumerate(value) if one.data_ptr() % 16 == 0)
            attributes |= {(index, place): [["tt.divisibility", 16]] for place in divided}
            continue
        if isinstance(value, torch.Tensor):
            signature[parameter.name], aligned = TYPES[value.dtype], value.data_ptr() % 16 == 0
        elif isinstance(value, int):
            signature[parameter.name], aligned = "i32" if value < 2**31 else "i64", value % 16 == 0
        else:
            signature[parameter.name], aligned = "fp32", False
        if aligned and not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment):
            attributes[(index,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, attributes), given


def assembled(ptx: str, architecture: int) -> str:
    """What ptxas says about it."""
    from triton.backends.nvidia.compiler import get_ptxas

    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        gpu = re.search(r"\.target (sm_\w+)", ptx)
        assert gpu is not None
        command = [get_ptxas(architecture).path, "-v", f"--gpu-name={gpu[1]}", file.name, "-o", os.devnull]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def reports_of(name: str, architecture: int, every: bool) -> Iterator[dict[str, Any]]:
    """One for each variant of the kernels of a module, which it names: by types, constants and how it is launched."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget

    module = importlib.import_module(f"actorserve.kernels.triton.{name.removeprefix('gpu_')}")
    kernels = [key for key, value in vars(module).items() if key.endswith("_kernel") and hasattr(value, "arg_names")]
    recorders = [Recorder(module, key) for key in kernels]
    getattr(launches, f"launch_{name.replace('.', '_')}")(module, every)
    for recorder in recorders:
        assert recorder.launches, f"{recorder.kernel.__name__} is not launched"
        for arguments, options in recorder.launches:
            source, rest = source_of(recorder.kernel, arguments, options)
            binary = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=rest)
            ptx = binary.asm["ptx"]
            told = assembled(ptx, architecture)
            numbers = {key: re.search(pattern, told) for key, pattern in PATTERNS.items()}
            yield {
                "module": name,
                "kernel": recorder.kernel.__name__,
                "architecture": architecture,
                "shared": binary.metadata.shared,
                "warps": binary.metadata.num_warps,
                "types": {key: kind for key, kind in source.signature.items() if kind != "constexpr"},
                "constants": {recorder.kernel.arg_names[at]: str(value) for (at,), value in source.constants.items()},
                "options": rest,
                "loads": sorted(
                    {*re.findall(r"ld\.global[\w.:]*", ptx), *re.findall(r"cp\.async\.c[ag].*(, 0x\w+)", ptx)}
                ),
            } | {key: -1 if found is None else int(found[1]) for key, found in numbers.items()}


PATTERNS = {
    "spilled": r"(\d+) bytes spill stores",
    "stack": r"(\d+) bytes stack frame",
    "registers": r"Used (\d+) registers",
}

if __name__ == "__main__":
    reports = [report for name in sys.argv[3:] for report in reports_of(name, int(sys.argv[1]), sys.argv[2] == "every")]
    json.dump(reports, sys.stdout)
