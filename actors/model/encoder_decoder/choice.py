"""Whether a model has an encoder that reads its prompt, by config.json, and what generation_config.json says of it."""

from __future__ import annotations

from typing import Any

from ...options.config import Config, ConfigError
from ...options.objects.speculative import is_wanted
from ..config_json import LARGEST, architecture_name
from ..values import Values
from .spec import EncoderSpec, SpeechSpec

LISTENS = ("WhisperForConditionalGeneration",)
GENERATES = ("ForConditionalGeneration", "MTModel", "LMHeadModel")  # what an encoder–decoder is called that writes
RELATIVE = 512  # positions that a model takes which knows distances only, if it says no number
LENGTHS = ("max_position_embeddings", "n_positions", "max_source_positions")


def has_encoder(whole: Values) -> bool:
    """Does a part of its own read the prompt?"""
    return whole["is_encoder_decoder"] is True and architecture_name(whole).endswith(GENERATES)


def read_encoder(
    config: Config, whole: Values, generation: Values, extractor: Values, words: int
) -> tuple[EncoderSpec, int]:
    """What is to be known of it, and the positions of a log. `extractor`: preprocessor_config.json.
    ConfigError says what cannot be.
    """
    name = architecture_name(whole)
    _check_options(config, name)
    listens = name in LISTENS
    longest, decoder = _lengths(config, whole, listens)
    start = _token(generation, "decoder_start_token_id", words)
    start = _token(whole, "decoder_start_token_id", words) if start is None else start
    if start is None:  # as generate() of transformers has it
        start = _token(generation, "bos_token_id", words)
    if start is None:
        raise whole.wrong("decoder_start_token_id", "the id of the token that a decoder begins with")
    forced = None if listens else _forced(whole, generation, words)
    filler = _token(whole, "pad_token_id", words)
    spec = EncoderSpec(
        longest=longest,
        decoder_longest=decoder,
        start=[start] if forced is None else [start, forced],
        filler=start if filler is None else filler,
        speech=_speech(whole, generation, extractor, words) if listens else None,
    )
    whole_length = spec.room(config.block_size) + decoder
    wanted = config.max_model_len
    if listens and wanted is not None and wanted != whole_length:
        raise ConfigError(
            f"--max-model-len: {wanted}: a sound and its text have {whole_length} positions in this model, "
            f"{decoder} of them for the text; leave the option out"
        )
    return spec, min(whole_length, wanted or whole_length)


def _check_options(config: Config, name: str) -> None:
    """ConfigError if one cannot be had."""
    for option, given in (
        ("--tensor-parallel-size", config.tensor_parallel_size > 1),
        ("--pipeline-parallel-size", config.pipeline_parallel_size > 1),
        ("--deterministic", config.deterministic),
        ("--speculative-config", is_wanted(config)),
        ("--enable-lora", config.enable_lora),
    ):
        if given:
            raise ConfigError(
                f"{option}: not with an encoder and a decoder ({name}), which layers of transformers compute, in one "
                "worker; leave the option out"
            )


def _lengths(config: Config, whole: Values, listens: bool) -> tuple[int, int]:
    """Positions of the encoder and of the decoder."""
    if listens:
        return whole.needed("max_source_positions", LARGEST), whole.needed("max_target_positions", LARGEST)
    if whole["relative_attention_num_buckets"] is not None:  # distances alone: no length is too long for it
        own = max(config.max_model_len or 0, _longest(whole, "encoder") or RELATIVE)
        return own, own
    read, written = (_longest(whole, part) for part in ("encoder", "decoder"))
    if read is None or written is None:
        names = (*LENGTHS, *(f"max_{part}_position_embeddings" for part in ("encoder", "decoder")))
        raise ConfigError(f"model: {whole.file} does not say how long a text the model takes ({', '.join(names)})")
    return read, written


def _longest(whole: Values, part: str) -> int | None:
    """Positions of the encoder or the decoder; some have a config of their own, and the encoder's one of its texts."""
    own = whole.object(part) or whole
    own = own.object("text_config") or own
    lengths = (own.whole(key, 1, LARGEST) for key in (*LENGTHS, f"max_{part}_position_embeddings"))
    return next((length for length in lengths if length is not None), None)


def _token(given: Values, key: str, words: int) -> int | None:
    return given.whole(key, 0, words - 1)


def _forced(whole: Values, generation: Values, words: int) -> int | None:
    """The token that a decoder's answer must begin with (BART's, or a language of mBART)."""
    found = _token(generation, "forced_bos_token_id", words)
    return _token(whole, "forced_bos_token_id", words) if found is None else found


def _speech(whole: Values, generation: Values, extractor: Values, words: int) -> SpeechSpec:
    marks = _token(generation, "no_timestamps_token_id", words)
    if marks is None:
        raise ConfigError(
            f"model: {generation.file} does not say which token means that there are no timestamps "
            "(no_timestamps_token_id); without it nobody knows which tokens are"
        )
    end = _token(generation, "eos_token_id", words)
    end = _token(whole, "eos_token_id", words) if end is None else end
    if end is None:
        raise whole.wrong("eos_token_id", "the id of the token that ends a text")
    languages = {code.strip("<|>"): token for code, token in _numbers(generation, "lang_to_id", words).items()}
    multilingual = generation.flag("is_multilingual", absent=bool(languages))
    first = generation.whole("max_initial_timestamp_index", 0, words)
    return SpeechSpec(
        languages=languages if multilingual else {},
        tasks=_numbers(generation, "task_to_id", words) if multilingual else {},
        end=end,
        no_timestamps=marks,
        previous=_token(generation, "prev_sot_token_id", words),
        suppress=_list(generation, whole, "suppress_tokens", words),
        suppress_first=_list(generation, whole, "begin_suppress_tokens", words),
        first_timestamp=first,
        alignment=_alignment(whole, generation),
        median=whole.whole("median_filter_width", 1, 255) or 7,
        mels=whole.needed("num_mel_bins", 1024),
        frames=2 * whole.needed("max_source_positions", LARGEST),
        n_fft=extractor.whole("n_fft", 16, 1 << 16) or 400,
        hop=extractor.whole("hop_length", 1, 1 << 16) or 160,
        rate=extractor.whole("sampling_rate", 1000, 192_000) or 16_000,
    )


def _alignment(whole: Values, generation: Values) -> list[tuple[int, int]]:
    """Heads by their layers, where they are said."""
    value: Any = generation["alignment_heads"]
    if value is None:
        return []
    most = whole.needed("decoder_layers", LARGEST), whole.needed("decoder_attention_heads", LARGEST)
    try:
        found = [(int(layer), int(head)) for layer, head in value]
    except (TypeError, ValueError):
        found = [(-1, -1)]
    if not all(0 <= layer < most[0] and 0 <= head < most[1] for layer, head in found):
        raise generation.wrong("alignment_heads", "a list of pairs, of a decoder's layer and a head of it")
    return found


def _numbers(given: Values, key: str, words: int) -> dict[str, int]:
    """Tokens by names."""
    part = given.object(key)
    if part is None:
        return {}
    return {name: part.needed(name, words - 1) for name in part.values}


def _list(generation: Values, whole: Values, key: str, words: int) -> list[int]:
    given = generation if key in generation.values else whole
    value: Any = given[key]
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(token, int) and 0 <= token < words for token in value):
        raise given.wrong(key, f"a list of tokens' numbers below vocab_size, {words}")
    return list(value)
