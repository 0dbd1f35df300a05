"""What wrappers of kernels beside attention are given to launch: shapes of models, or every variant; nothing runs."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch

TABLE = torch.zeros(3, 20, dtype=torch.int32)  # of blocks
FORMS = ("floats", "int8", "int4", "mxfp4")  # of experts' weights


def launch_rms_norm(module: Any, every: bool) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16) if every else (torch.bfloat16,):
        for size in (64, 1000, 1024, 4096, 8192, 16384) if every else (4096,):
            x, gain = torch.empty(2, size, dtype=dtype), torch.empty(size, dtype=dtype)
            module.rms_norm(x, gain, 1e-5)
            module.add_rms_norm(x, torch.empty_like(x), gain, 1e-5)


def launch_silu_mul(module: Any, every: bool) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16) if every else (torch.bfloat16,):
        for size in (100, 3072, 14336) if every else (3072,):
            module.silu_mul(torch.empty(2, 2 * size, dtype=dtype))
            module.gelu_tanh_mul(torch.empty(2, 2 * size, dtype=dtype))


def launch_rotary_kv(module: Any, every: bool) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16) if every else (torch.bfloat16,):
        for head_dim, rotary in ((64, 64), (80, 80), (96, 48), (128, 128), (256, 256)) if every else ((128, 128),):
            q, k, v = torch.empty(2, 48, head_dim, dtype=dtype).split([32, 8, 8], 1)
            places = torch.empty(2, dtype=torch.int64), torch.empty(2, dtype=torch.int64)
            pools = module.Pools(*torch.empty(2, 3, 8, 32, head_dim, dtype=dtype))
            turns = module.RotaryTables(*torch.empty(2, 100, rotary // 2))
            norms = module.Norms(*torch.empty(2, head_dim, dtype=dtype), 1e-6)
            codes = torch.empty(2, 3, 8, 32, head_dim, dtype=torch.uint8).view(torch.float8_e4m3fn)
            scaled = module.Pools(codes[0], codes[1], module.Scales.make(codes[0]))
            module.rotate_and_write(q, k, v, *places, turns, pools, norms=norms)
            module.rotate_and_write(q, k, v, *places, turns, scaled, norms=norms)
            if every:
                module.rotate_and_write(q, k, v, *places, turns, pools)
                module.rotate_and_write(q, k, v, *places, turns, pools, norms=norms, interleaved=True)
        if every or dtype is torch.bfloat16:
            launch_rotary_of_few_models(module, dtype)


def launch_rotary_of_few_models(module: Any, dtype: torch.dtype) -> None:
    """DeepSeek's latents, and by what it chooses tokens; Llama 4's layers that turn, and those that do not."""
    places, entry = (torch.empty(2, dtype=torch.int64),) * 2, torch.empty(2, 576, dtype=dtype)
    memory, out = torch.empty(3, 1, 32, 576, dtype=dtype), torch.empty(2, 128, 576, dtype=dtype)
    q, turns = torch.empty(2, 128, 192, dtype=dtype)[..., 128:], module.RotaryTables(*torch.empty(2, 100, 32))
    kept = module.Pools(memory[..., 512:], memory[..., :512])
    rows = entry[:, None, 512:], entry[:, None, :512]
    module.rotate_and_write(q, *rows, *places, turns, kept, out=out[..., 512:], interleaved=True)
    keys, index, numbers = (
        torch.empty(2, 1, 128, dtype=dtype),
        torch.empty(3, 1, 32, 128, dtype=dtype),
        torch.empty(128),
    )
    given = torch.empty(2, 64, 128, dtype=dtype), keys, keys[..., :0], *places, turns
    for interleaved in (False, True):
        norm, pool = module.KeyNorm(numbers, numbers, 1e-6), module.Pools(index, index[..., :0])
        module.rotate_and_write(*given, pool, key_norm=norm, interleaved=interleaved)
    q, k, v = torch.empty(2, 56, 128, dtype=dtype).split([40, 8, 8], 1)
    pools, turns = (
        module.Pools(*torch.empty(2, 3, 8, 32, 128, dtype=dtype)),
        module.RotaryTables(*torch.empty(2, 100, 64)),
    )
    module.rotate_and_write(q, k, v, *places, turns, pools, interleaved=True, unit_eps=1e-5)
    nothing = module.RotaryTables(*torch.empty(2, 100, 1))
    module.rotate_and_write(q, k, v, *places, nothing, pools, growth=torch.empty(100))


def launch_attention_indexer(module: Any, every: bool) -> None:
    """DeepSeek V3.2 and GLM-5, in blocks of two sizes, for long texts and short ones; as many heads as may be."""
    kinds = (torch.float32, torch.float16, torch.bfloat16) if every else (torch.bfloat16,)
    counts, sizes = ((128, 64, 32), (16, 128)) if every else ((64,), (32,))
    for dtype, heads, block in itertools.product(kinds, counts, sizes):
        queries, weights = torch.empty(2, heads, 128, dtype=dtype), torch.empty(2, heads)
        keys, numbers = torch.empty(3, 1, block, 128, dtype=dtype), torch.zeros(3, 2, dtype=torch.int32)
        chosen = module.ChosenTokens(*numbers, torch.zeros(2, 2048, dtype=torch.int32))
        for longest in (163840, 8192):
            table = torch.zeros(2, longest // block, dtype=torch.int32)
            module.choose_tokens(queries, weights, keys, table, chosen)


def launch_linear_gemv(module: Any, every: bool) -> None:
    """As a layer has them; of Hopper with the wait for the kernel before."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16) if every else (torch.bfloat16,):
        for inputs, outputs in ((1024, 4096), (4096, 6144), (4096, 28672)) if every else ((4096, 6144),):
            x, weight = torch.empty(2, inputs, dtype=dtype), torch.empty(outputs, inputs, dtype=dtype)
            norm = None if dtype == torch.float16 else module.NormBefore(torch.empty(inputs, dtype=dtype), 1e-6)
            pdl = every and int(sys.argv[1]) >= 90
            module.gemv(x, weight, norm=norm, gated=True)
            module.gemv(x, weight, torch.empty(outputs, dtype=dtype), norm=norm, pdl=pdl)
            workspace = module.Workspace.make(outputs, "cpu")
            module.gemv(x, weight, add=torch.empty(2, outputs, dtype=dtype), workspace=workspace, splits=2, pdl=pdl)


def launch_linear_fixed_linear(module: Any, every: bool) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16) if every else (torch.bfloat16,):
        for inputs, outputs in ((1024, 4096), (4096, 8192), (4096, 28672)) if every else ((4096, 28672),):
            x, weight = torch.empty(2, inputs, dtype=dtype), torch.empty(outputs, inputs, dtype=dtype)
            module.fixed_linear(x, weight)
            module.fixed_linear(x, weight, torch.empty(outputs, dtype=dtype))
        module.fixed_linear(x, torch.empty(256, x.shape[1], dtype=dtype), wide=True)  # a router
        if every:  # of latents
            heads = torch.empty(2, 128, 192, dtype=dtype)[..., :128]
            module.fixed_products(heads, torch.empty(128, 512, 128, dtype=dtype), torch.empty(2, 128, 512, dtype=dtype))


def launch_linear_lora(module: Any, every: bool) -> None:
    """As q, k and v, what follows attention, and gate and up have them; for few tokens and many."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16) if every else (torch.bfloat16,):
        for sizes in ((4096,), (14336, 14336), (4096, 1024, 1024), (96, 100, 7, 9)) if every else ((2048, 512, 512),):
            for tokens in (2, 300):
                slots = module.LoraSlots.make(sizes, 4096, 2, 64, dtype, torch.device("cpu"))
                x, y = torch.empty(tokens, 4096, dtype=dtype), torch.empty(tokens, sum(sizes), dtype=dtype)
                blocks, inner = torch.zeros(2, 3, dtype=torch.int32), module.make_inner(tokens, slots, x.device)
                given = module.TokenBlocks(blocks, blocks, module.launch_of(dtype, tokens))
                module.shrink(x, slots, given, inner)
                module.expand(inner, y, None, slots, given)
                if every:
                    module.expand(inner, y, y[0], slots, given)


def launch_linear_stored_linear(module: Any, every: bool) -> None:
    """Weights as checkpoints have them, for a few rows and a prompt's, and as floats for more (without the product)."""
    kinds: list[tuple[Any, ...]] = [("bits4", 128, True, 0, False), ("e4m3", 128, False, 0, False)]
    if every:
        kinds += [("bits4", group, zeros, 8, False) for group in (32, 64, 4096) for zeros in (False, True)]
        kinds += [("bits8", 4096, False, 128, False), ("bits8", 32, True, 0, False), ("e4m3", 4096, False, 0, False)]
        kinds += [("e2m1", 16, False, 0, True), ("e2m1", 32, False, 0, False)]
    if not every:
        kinds.append(("bits4", 128, False, 0, False, True, 8))
    else:
        kinds += [("bits4", 32, False, 0, False, True, 8), ("bits4", 16, False, 4, False, False, 16)]  # Q4_K, Q3_K
        kinds += [("bits8", 16, False, 32, False, False, 16), ("bits4", 32, False, 8, False, True)]  # Q6_K, int4
        kinds += [("bits8", 32, False, 0, False, True, 8), ("bits4", 16, False, 0, False, True, 16)]  # Q5_K, Q2_K
    for dtype in (torch.float32, torch.float16, torch.bfloat16) if every else (torch.bfloat16,):
        for kind in kinds:
            for outputs in (1024, 6144, 28672) if every and kind[1] == 128 else (6144,):
                weight = stored_of(outputs, *kind)
                floats, bias = torch.empty(outputs * 4096, dtype=dtype), torch.empty(outputs, dtype=dtype)
                for rows in (2, 40) if every or kind[0] == "bits4" else (2,):
                    x = torch.empty(rows, 4096, dtype=dtype)
                    module.stored_linear(x, weight, bias if rows == 40 else None)
                module.as_floats(weight, floats, dtype)
                if every:
                    module.stored_linear(torch.empty(2, 4096, dtype=dtype), weight, fixed=True)


def launch_linear_scaled_linear(module: Any, every: bool) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16) if every else (torch.bfloat16,):
        for inputs in (200, 1024, 4096, 14336) if every else (4096,):
            module.round_rows(torch.empty(2, inputs, dtype=dtype), -(-inputs // 128) * 128)


def stored_of(
    outputs: int, form: str, group: int, zeros: bool, zero: int, factors: bool, minima: bool = False, together: int = 0
) -> Any:
    """Of 4096 inputs, in memory that nobody has written."""
    from actorserve.kernels.triton.linear.stored_weights import FOUR_BITS, StoredWeight

    inputs = 4096
    kind = torch.uint8 if together else torch.float16 if form == "bits4" else torch.float32
    scales = torch.empty(outputs, inputs // group, dtype=kind)
    beside = torch.empty(scales.shape, dtype=torch.uint8) if zeros else None
    numbers = torch.empty(outputs, inputs // (2 if form in FOUR_BITS else 1), dtype=torch.uint8)
    above = torch.empty(outputs, inputs // group // together, 1 + minima, dtype=torch.float16) if together else None
    least, of_rows = (torch.empty_like(scales) if minima else None), (torch.empty(outputs) if factors else None)
    weight = StoredWeight(form, numbers, inputs, scales, group, beside, zero, of_rows, least, above, together)
    weight.check()
    return weight


def launch_moe_routing(module: Any, every: bool) -> None:
    """As models of 60 to 512 experts have them."""
    for experts, choices in ((8, 2), (60, 4), (128, 8), (256, 8), (512, 10)) if every else ((128, 8),):
        for tokens in (1, 40):
            scores, slots = torch.empty(tokens, experts, dtype=torch.bfloat16), torch.empty(tokens, dtype=torch.int64)
            module.route(scores, module.Routing(experts, choices, normalised=True), 16, slots)
            if every:
                routing = module.Routing(experts, choices, sigmoid=True, first=experts // 2, here=experts // 2)
                module.route(scores.float(), routing, 64, slots, torch.empty(experts))
    for tokens in (1, 40):  # DeepSeek V3's, and V2's
        scores, slots = torch.empty(tokens, 256), torch.empty(tokens, dtype=torch.int64)
        routing = module.Routing(256, 8, sigmoid=True, normalised=True, groups=8, kept=4, best=2)
        module.route(scores, routing, 16, slots, torch.empty(256))
        if every:
            module.route(scores[:, :160], module.Routing(160, 6, groups=8, kept=3), 16, slots)


def launch_moe_experts(module: Any, every: bool) -> None:
    """Of the sizes of Qwen3-30B-A3B, and of gpt-oss with its gate; weights in all formats, for few and many tokens."""
    odd = module.Gate(alpha=1.702, limit=7.0, offset=1.0)
    exact, half, brain = torch.float32, torch.float16, torch.bfloat16
    kinds = [(brain, 2048, 768, form, odd, 1) for form in ("floats", "mxfp4")]
    if every:
        kinds = [(brain, 2880, 2880, form, odd, count) for form in FORMS for count in (1, 100, 600)]
        kinds += [(brain, 2048, 768, "floats", module.SILU, count) for count in (1, 100, 600)]
        kinds += [(half, 2880, 2880, form, module.SILU, count) for form in ("floats", "mxfp4") for count in (1, 600)]
        kinds += [(exact, 2048, 768, form, module.Gate(gelu=True), 1) for form in FORMS]
        kinds += [(brain, 5120, 8192, form, module.SILU, count) for form in ("floats", "int8") for count in (1, 600)]
    for dtype, hidden, inner, form, gate, tokens in kinds:
        up = expert_weights(form, 2 * inner, hidden, dtype, gate is odd)
        down = expert_weights(form, hidden, inner, dtype, gate is odd)
        launch = module.launch_of(dtype, 2 * tokens, 4, form)
        of_inputs = hidden == 5120  # Llama 4's
        x = torch.empty(tokens, hidden, dtype=dtype)
        module.run_experts(x, routed(tokens, launch), up, down, gate, of_inputs=of_inputs)
        made, beside = torch.empty(4, hidden, dtype=dtype), torch.empty(2, hidden, dtype=dtype)
        module.add_up(made, routed(2, module.FEW))
        module.add_up(made, routed(2, module.FEW), beside, torch.empty(2, 1, dtype=dtype))


def expert_weights(form: str, outputs: int, inputs: int, dtype: torch.dtype, biased: bool) -> Any:
    """Of 4 experts, in memory that nobody has written."""
    from actorserve.kernels.triton.moe.weights import GROUP, ExpertWeights, padded

    bias = torch.empty(4, outputs, dtype=dtype) if biased else None
    if form in ("floats", "int8"):
        scales = torch.empty(4, outputs) if form == "int8" else None
        numbers = torch.empty(4, outputs, inputs, dtype=torch.int8 if form == "int8" else dtype)
        return ExpertWeights(numbers, inputs, scales, bias=bias)
    kind = torch.uint8 if form == "mxfp4" else torch.bfloat16
    scales = torch.empty(4, outputs, padded(inputs) // GROUP, dtype=kind)
    middles = None if form == "mxfp4" else torch.empty_like(scales)
    numbers = torch.empty(4, outputs, padded(inputs) // 2, dtype=torch.uint8)
    return ExpertWeights(numbers, inputs, scales, middles, bias)


def routed(tokens: int, launch: Any) -> Any:
    """So many tokens to 2 of 4 experts each."""
    from actorserve.kernels.triton.moe.routing import Routed, Routing

    most, chosen = Routing(4, 2).most_blocks(tokens, launch.block), torch.empty(tokens, 2, dtype=torch.int32)
    pairs, blocks = torch.empty(most * launch.block, dtype=torch.int32), torch.empty(most, 2, dtype=torch.int32)
    return Routed(chosen, chosen.float(), pairs, blocks)


def launch_gpu_sampling(module: Any, every: bool) -> None:
    for words in (128256, 151936, 1001, 262208) if every else (151936,):
        logits, rows, out = torch.empty(2, words), torch.empty(2, dtype=torch.int64), torch.empty(2, dtype=torch.int64)
        parameters = module.RowParameters(*(torch.empty(4, dtype=kind) for kind in module.PARAMETER_DTYPES))
        workspace = module.Workspace.make(2, words, "cpu")
        module.sample(logits.bfloat16(), rows, parameters, workspace, out)
        if every:
            module.sample(logits.half(), rows, parameters, workspace, out)
            module.sample(logits, rows, parameters, workspace, out.int(), kept=torch.empty(2, dtype=torch.int32))


def launch_greedy(module: Any, every: bool) -> None:
    """Parts of the vocabularies above: the last one has fewer words."""
    for words in (64128, 75968, 75967, 501, 131104) if every else (75968,):
        rows, keys = torch.empty(2, dtype=torch.int64), torch.empty(2, dtype=torch.int64)
        parameters = module.RowParameters(*(torch.empty(4, dtype=kind) for kind in sampling_dtypes()))
        workspace = module.Workspace.make(2, 2 * words, "cpu")
        for dtype in (torch.float32, torch.float16, torch.bfloat16) if every else (torch.bfloat16,):
            module.greedy_keys(torch.empty(2, words, dtype=dtype), words, rows, parameters, workspace, keys)


def sampling_dtypes() -> tuple[torch.dtype, ...]:
    from actorserve.kernels.triton.sampling import PARAMETER_DTYPES

    return PARAMETER_DTYPES


def launch_gpu_logits(module: Any, every: bool) -> None:
    for words in (128256, 151936, 1001) if every else (151936,):
        logits, rows, numbers = torch.empty(2, words), torch.empty(2, dtype=torch.int64), torch.empty(2)
        prompted = torch.empty(2, -(-words // 32), dtype=torch.int32)
        counts = torch.empty(2, words, dtype=torch.int16)
        penalties = module.RowPenalties(numbers, numbers, numbers, prompted, counts)
        mask = module.Mask(torch.empty(2, -(-words // 32), dtype=torch.int32), rows)
        bias = module.Bias(torch.empty(2, module.MOST_BIASES, dtype=torch.int32), torch.empty(2, module.MOST_BIASES))
        module.adjust(logits, rows, penalties, bias, mask)
        module.log_sums(logits)
        module.count_tokens(rows, rows.int(), rows, counts)
        if every:
            long = penalties._replace(counts=counts.int())
            module.adjust(logits, rows, long, bias, mask)
            module.count_tokens(rows, rows.int(), rows, long.counts)
            module.count_tokens(rows, rows, rows, counts)
            module.adjust(logits, rows, penalties)
            module.adjust(logits, rows, mask=mask)


def launch_step_inputs(module: Any, every: bool) -> None:
    row, state = torch.zeros(2, dtype=torch.int64), module.RowState(*torch.zeros(2, 3, dtype=torch.int64), TABLE)
    inputs = module.StepInputs.make(2, 40, TABLE.shape[1], "cpu")
    starts, given = torch.zeros(3, dtype=torch.int64), torch.zeros(40, dtype=torch.int64)
    module.make_inputs(row, starts, row, state, inputs, 32, 40, given)
    module.make_inputs(row, starts, row, state, inputs.part(2, 2), 16, 1)
    module.keep_tokens(row, row.int(), state.last)
    floats, halves = torch.zeros(3, dtype=torch.float64), torch.zeros(3)
    module.change_rows(torch.zeros(11, dtype=torch.int64), 1, state, (halves, row, floats, halves, halves, row))


def launch_drafts(module: Any, every: bool) -> None:
    rows, inputs = torch.zeros(3, dtype=torch.int64), module.StepInputs.make(2, 40, TABLE.shape[1], "cpu")
    state, own = module.DraftState.make(3, 100, "cpu"), module.RowState(rows, rows, TABLE)
    for drafts in (1, 3, 32) if every else (5,):
        module.propose(rows, torch.zeros(4, dtype=torch.int64), rows, inputs, state, module.Lookup(1, 64, drafts))
    module.verify(rows, rows, rows.int(), inputs, own, state, torch.zeros(3, 2, dtype=torch.int32))
    starts, words = torch.zeros(4, dtype=torch.int64), torch.zeros(40, dtype=torch.int64)
    module.follow(rows, starts, inputs, own, state, words, rows, 40)


def launch_vision_given_rows(module: Any, every: bool) -> None:
    places = torch.zeros(2, dtype=torch.int64)
    for dtype in (torch.float32, torch.float16, torch.bfloat16) if every else (torch.bfloat16,):
        for size in (100, 1024, 3584, 8192) if every else (3584,):
            x, rows = torch.empty(2, size, dtype=dtype), torch.empty(3, size, dtype=dtype)
            module.put_rows(x, rows, places)
            module.add_rows(x, rows, places)


def launch_vision_axis_turns(module: Any, every: bool) -> None:
    for pairs in (32, 40, 64) if every else (64,):
        turns = module.AxisTurns(torch.zeros(pairs, dtype=torch.int32), torch.empty(pairs), 1.2)
        out = module.RotaryTables(*torch.empty(2, 3, pairs))
        module.turn_by_axes(torch.zeros(3, dtype=torch.int64), torch.zeros(3, 3, dtype=torch.int64), turns, out)
