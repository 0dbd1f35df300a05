"""The paged attention kernels, compiled for five generations of GPUs: nothing spills, and shared memory is enough.

Another process compiles, because this one may have set TRITON_INTERPRET, under which kernels are no code to compile.
"""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.gpu.compilations import LONGEST_S, TRITONS, by_each_triton, say, version_of

SHARED = dict.fromkeys((86, 89, 120), 99 << 10) | {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # bytes of a program
REGISTERS = 1 << 16  # of all its threads, which have 8, 16, 24 … each
TENSOR_CORES = {90: "wgmma", 100: "tcgen05.mma"}  # for products of many rows; mma.sync elsewhere
E4M3 = "float8_e4m3fn"
NUMBERS = {"float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", E4M3: "*u8"}
SHAPES = ((32, None, None), (64, 4096, 30.0))  # (block size, window, soft cap)
Result = dict[str, Any]
Quick = Callable[[list[dict[str, Any]]], list[Result]]


def compiled(tmp_path: Path, jobs: list[dict[str, Any]], triton: str) -> list[Result]:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    results: list[Result] = say(__file__, [json.dumps(jobs)], environment, triton)
    return results


def jobs_of(
    arch: int, head_dims: tuple[int, ...], dtype: str = "bfloat16", pools: str | None = None
) -> list[dict[str, Any]]:
    """Of all kernels; `pools` is the type of keys and values, if another one."""
    return [
        {"kernel": kernel, "dtype": dtype, "arch": arch, "head_dim": head_dim, "shape": shape, "pools": pools or dtype}
        for kernel in ("decode", "prefill", *(() if pools else ("merge",)))
        for head_dim in head_dims
        for shape in SHAPES
    ]


def check(result: Result) -> None:
    job = result["job"]
    wide = job["kernel"] == "prefill" and job["head_dim"] > 256 and "latent" not in job.get("given", {})
    exact = job["dtype"] == "float32" and (job["pools"] == E4M3 or wide)  # for checks: nothing is fetched ahead
    assert max(result["spills"]) <= 8 * exact, result  # bytes stored and loaded; ptxas has two with any registers
    assert 0 < result["registers"] <= 255, result
    assert -(-result["registers"] // 8) * 8 * 32 * result["warps"] <= REGISTERS, result
    assert result["shared"] <= SHARED[job["arch"]], result
    small = job["kernel"] == "prefill" and job["pools"] == E4M3 and job["head_dim"] == 64  # 8 bytes for each thread
    if job["kernel"] != "merge" and not (small or exact):
        assert result["wide_loads"], f"keys and values are not read 16 bytes at a time: {result}"
    latents = "latent" in job.get("given", {}) and job["given"]["group"] > 32  # of which a program has many queries
    few = (job["kernel"] == "decode" and not latents) or (job["pools"] == E4M3 and job["head_dim"] > 256)
    if job["dtype"] != "float32" and job["kernel"] != "merge":
        assert ("mma.sync" if few else TENSOR_CORES.get(job["arch"], "mma.sync")) in result["products"], result


FEATURES: dict[str, tuple[int, dict[str, Any]]] = {
    "gpt-oss": (64, {"sinks": True, "group": 8}),
    "Llama 4": (128, {"chunk": 8192, "group": 5}),
    "ALiBi": (128, {"slopes": True, "group": 1}),
    "Falcon": (64, {"group": 71, "kv_heads": 1}),
    "heads of two widths": (192, {"value_dim": 128, "group": 1}),
    "DeepSeek V2-Lite": (576, {"latent": 512, "group": 16, "kv_heads": 1}),
    "GLM 4.7 Flash": (576, {"latent": 512, "group": 20, "kv_heads": 1}),
    "Kimi K2": (576, {"latent": 512, "group": 64, "kv_heads": 1}),
    "DeepSeek V3": (576, {"latent": 512, "group": 128, "kv_heads": 1}),
    "DeepSeek V3.2": (576, {"latent": 512, "group": 128, "kv_heads": 1, "block_size": 1}),
    "GLM 5": (576, {"latent": 512, "group": 64, "kv_heads": 1, "block_size": 1}),
    "GLM 5 on 4 devices": (576, {"latent": 512, "group": 16, "kv_heads": 1, "block_size": 1}),
    "MiniCPM 3": (288, {"latent": 256, "group": 40, "kv_heads": 1}),
    "MiMo": (192, {"value_dim": 128, "sinks": True, "group": 16}),
    "Gemma 4": (512, {"group": 8}),
    "Gemma 3": (256, {"group": 2, "ends": True}),
    "all": (96, {"chunk": 512, "sinks": True, "slopes": True, "value_dim": 64}),
}


def feature_jobs(arch: int, dtype: str = "bfloat16", pools: str | None = None) -> list[dict[str, Any]]:
    """Of all that models ask for; no latent has 8 bits, and tokens that are chosen are each a row that decodes."""
    return [
        job | {"given": given, "name": name}
        for name, (head_dim, given) in FEATURES.items()
        for job in jobs_of(arch, (head_dim,), dtype, pools)
        if job["shape"] is SHAPES[name == "MiMo"] and (pools is None or "latent" not in given)
        if job["kernel"] != "prefill" or "block_size" not in given
    ]


def heads_of_128() -> list[dict[str, Any]]:
    """Those with a window and a soft cap as they are; the others in the three ways in which they may be asked for."""
    jobs = jobs_of(90, (128,))
    plain = {job["kernel"]: job for job in jobs if job["shape"] is SHAPES[0]}
    eights = [job for job in jobs_of(90, (128,), pools=E4M3) if job["shape"] is SHAPES[0]]
    ways = [plain["decode"] | {"long": ["block_stride", "head_stride"]}, plain["prefill"] | {"divided": True}]
    return [*(job for job in jobs if job["shape"] is SHAPES[1]), *eights, *ways, plain["prefill"] | {"fixed": True}]


def asked_for_by_few() -> list[dict[str, Any]]:
    names = "gpt-oss", "DeepSeek V3", "DeepSeek V3.2", "Gemma 3"
    jobs = {name: [job for job in feature_jobs(90) if job["name"] == name] for name in names}
    return [*jobs["gpt-oss"][:1], *jobs["DeepSeek V3"][:2], *jobs["DeepSeek V3.2"][:1], *jobs["Gemma 3"][1:2]]


def most_registers() -> list[dict[str, Any]]:
    """Prompts with heads of 256 and pools of 8 bits, which float16 is multiplied with as it is; with 16 heads over
    latents where products have their sums in registers and 64 queries a program."""
    jobs = [*jobs_of(90, (256,), "float16", E4M3), *(job for job in feature_jobs(80) if "V2-Lite" in job["name"])]
    return [job for job in jobs if job["kernel"] == "prefill" and job["shape"] is SHAPES[0]]


@pytest.fixture(scope="module", params=TRITONS, ids=version_of)
def quick(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Quick:
    """What is said of these jobs: all are compiled in one process, half of whose time would be imports else."""
    jobs = [*heads_of_128(), *asked_for_by_few(), *most_registers()]
    found = compiled(tmp_path_factory.mktemp("cache"), jobs, request.param)
    results = {json.dumps(result["job"]): result for result in found}
    return lambda asked: [results[json.dumps(job)] for job in asked]


def test_heads_of_128_on_hopper(quick: Quick) -> None:
    """Pools of 8 bits and blocks more than 2^31 numbers apart, too."""
    for result in quick(heads_of_128()):
        check(result)
        if result["job"]["kernel"] == "prefill":
            assert (result["fused"] == 0) == ("fixed" in result["job"]), "masked and unmasked tiles round alike"
        assert (result["conversions"] > 0) == (result["job"]["pools"] == E4M3), result


def test_what_few_models_ask_for(quick: Quick) -> None:
    """Sinks, a latent of 576 that 128 heads read, of tokens that lie apart, too, and pictures whose tokens see one
    another."""
    for result in quick(asked_for_by_few()):
        check(result)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
@by_each_triton
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("arch", SHARED)
def test_all_that_models_ask_for(tmp_path: Path, arch: int, dtype: str, triton: str) -> None:
    for pools in (None, E4M3) if arch >= 89 else (None,):
        jobs = feature_jobs(arch, dtype, pools)
        jobs += [job | {"divided": True} for job in jobs if (job["name"], job["kernel"]) == ("Gemma 4", "prefill")]
        for result in compiled(tmp_path / str(pools), jobs, triton):
            check(result)


def test_what_takes_most_registers(quick: Quick) -> None:
    for result in quick(most_registers()):
        check(result)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
@by_each_triton
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("arch", [89, 90, 100, 120])
def test_all_with_pools_of_8_bits(tmp_path: Path, arch: int, dtype: str, triton: str) -> None:
    for result in compiled(tmp_path, jobs_of(arch, (64, 80, 128, 256), dtype, E4M3), triton):
        check(result)


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
@by_each_triton
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("arch", SHARED)
def test_all(tmp_path: Path, arch: int, dtype: str, triton: str) -> None:
    jobs = jobs_of(arch, (64, 80, 128, 256), dtype)
    jobs += [job | {"divided": True} for job in jobs if job["kernel"] == "prefill"]
    for result in compiled(tmp_path, jobs, triton):
        check(result)


def compile_one(job: dict[str, Any]) -> Result:
    """What the compiler and ptxas say of a kernel, as it is launched for 2 heads of keys and 8 of queries."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from actorserve.kernels.pages import ByHead, Scoring
    from actorserve.kernels.triton.attention import decode_launch, paged_decode, paged_prefill

    given = job.get("given", {})  # what not all models ask for
    block_size, window, soft_cap = job["shape"]
    block_size = given.get("block_size", block_size)
    scoring = Scoring(1.0, window, soft_cap, given.get("chunk"))
    dtype = getattr(torch, job["dtype"])
    pools = getattr(torch, job["pools"])
    kv_heads, group = given.get("kv_heads", 2), given.get("group", 4)
    keys = torch.empty(1, kv_heads, block_size, job["head_dim"], dtype=pools, device="meta")
    values = keys[..., : given["latent"]] if "latent" in given else keys
    if "value_dim" in given:
        values = torch.empty(*keys.shape[:3], given["value_dim"], dtype=pools, device="meta")
    numbers = torch.empty(kv_heads * group, device="meta")
    by_head = ByHead(numbers if given.get("sinks") else None, numbers if given.get("slopes") else None)
    shape = (dtype, keys, kv_heads * group, scoring, values, by_head)
    narrow = SHARED[job["arch"]] < decode_launch.ROOMY
    if job["kernel"] == "prefill":
        kernel = paged_prefill._prefill
        options, launch = paged_prefill.configuration(*shape, narrow=narrow)
    else:
        kernel = paged_decode._decode if job["kernel"] == "decode" else paged_decode._merge
        options, launch = paged_decode.configuration(*shape, narrow=narrow)
    options |= {"DIVIDED": job.get("divided", not window and job["kernel"] == "decode"), "LEAST": 128}
    options |= {"ENDS": given.get("ends", False)}
    launch = {"num_warps": 4} if job["kernel"] == "merge" else launch
    launch |= {"enable_fp_fusion": False} if job.get("fixed") else {}
    options = {name: value for name, value in options.items() if name in kernel.arg_names}
    number, pool = (NUMBERS[job[name]] for name in ("dtype", "pools"))
    types = {"queries": number, "keys": pool, "values": pool, "out": number, "partial": "*fp32", "sums": "*fp32"}
    types |= {"sinks": "*fp32" if given.get("sinks") else number, "slopes": "*fp32" if given.get("slopes") else number}
    types |= {"key_scales": pool, "value_scales": pool, "ends": "*i64" if given.get("ends") else "*i32"}
    types |= {"table": "*i32", "lengths": "*i32", "starts": "*i32", "factor": "fp32", "cap": "fp32"}
    types |= dict.fromkeys(options, "constexpr") | dict.fromkeys(job.get("long", ()), "i64")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    attributes = {
        (index,): [["tt.divisibility", 16]] for index, one in enumerate(kernel.params) if aligned(one, signature)
    }
    triton.knobs.nvidia.dump_ptxas_log = True
    # ptxas says nothing of what is cached: two models may have one merge
    triton.knobs.compilation.always_compile = True
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        source = ASTSource(kernel, signature, options, attributes)
        binary = triton.compile(source, GPUTarget("cuda", job["arch"], 32), options=launch)
    return {
        "job": job,
        "shared": binary.metadata.shared,
        "warps": binary.metadata.num_warps,
        **said(log.getvalue(), binary.asm["ptx"]),
    }


def aligned(parameter: Any, signature: dict[str, str]) -> bool:
    """What the just-in-time compiler takes for a multiple of 16 of a launch, as far as the kernel lets it."""
    if signature[parameter.name][0] == "*":
        return not parameter.do_not_specialize_on_alignment
    return parameter.name.endswith("stride") and not parameter.do_not_specialize


def said(log: str, ptx: str) -> Result:
    return {
        "spills": [int(number) for number in re.findall(r"(\d+) bytes spill", log)],
        "registers": int("".join(re.findall(r"Used (\d+) registers", log)) or 0),
        "wide_loads": len(re.findall(r"cp\.async\.cg\.shared\.global.*0x10", ptx)),
        "conversions": len(re.findall(r"cvt\.rn\.f16x2\.e4m3x2", ptx)),
        "fused": len(re.findall(r"fma\.rn", ptx)),
        "products": sorted(set(re.findall(r"mma\.sync|wgmma|tcgen05\.mma", ptx))),
    }


if __name__ == "__main__":
    json.dump([compile_one(job) for job in json.loads(sys.argv[1])], sys.stdout)
