"""The model's folder and what its JSON files say, read once by the supervisor and handed to every actor.

Leaf module: plain JSON only, no torch and no transformers, so that the supervisor starts at once.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..options.config import Config, ConfigError
from .config_json import LARGEST, TRANSFORMERS, architecture_name, find_architecture
from .encoder_decoder.choice import has_encoder, read_encoder
from .encoder_decoder.spec import EncoderSpec
from .forms import as_read, without_gguf
from .generation import end_tokens, in_file, read_override, sampling_defaults, with_end_of
from .gguf.folder import SOURCES, check_header
from .media import changes_of, modalities_of, with_tokens
from .mistral.folder import form_of
from .names import CODE, check_folder, find_folder, use_cache
from .pooling.choice import pools, read_pooling
from .pooling.dual_encoder import text_part
from .pooling.spec import PoolingSpec
from .tokenizers.tokenizer_files import added_tokens, named_tokens
from .values import Values, read_json
from .vision.adapted import adapted_vision
from .vision.refused import check_kind
from .vision.spec import VisionSpec
from .vision.texts import has_text_part, read_vision, text_values
from .vocabularies.folder import check_source, fast_tokenizer
from .weights.weight_files import check_index, stored_shapes

__all__ = ["DEMO_FOLDER", "ModelInfo", "read_json", "resolve_model", "with_tokenizer"]

LENGTHS = (
    "max_position_embeddings n_positions max_seq_len max_sequence_length max_target_positions n_ctx "
    "seq_length max_seq_length model_max_length"
).split()
COUNTED_FROM_PADDING = (  # their first position is behind that of the padding token
    *("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer", "roberta-prelayernorm"),
    *("data2vec-text", "xmod", "luke", "ibert"),
)
DUAL_CHUNKS = "dual_chunk_attention_config"
TEXT_PARTS = ("text_config", "llm_config", "decoder")
DEMO_FOLDER = Path(__file__).resolve().parent / "demo"


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What every actor needs to know of the model without reading its weights."""

    folder: str
    tokenizer_folder: str  # empty without a tokenizer
    architecture: str  # as in config.json, e.g. "LlamaForCausalLM"
    vocab_size: int
    max_model_len: int  # tokens, prompt and answer together
    end_tokens: list[int]
    sampling_defaults: dict[str, float]  # of generation_config.json, by the request fields' names
    pooling: PoolingSpec | None = None  # where it makes no texts
    encoder: EncoderSpec | None = None  # where a part of its own reads the prompt
    media: list[str] = []  # what it takes beside texts: pictures, films, sounds
    media_changes: list[str] = []  # what requests may change of how these are processed
    vision: VisionSpec | None = None  # where it sees pictures
    hidden: int = 0  # numbers of a token's embedding, of a model that --enable-prompt-embeds is for

    @property
    def longest_text(self) -> int:
        """Tokens of a prompt that is a text; others may be longer."""
        dual = None if self.pooling is None else self.pooling.dual
        return self.max_model_len if dual is None else dual.longest


def resolve_model(config: Config) -> ModelInfo:
    """Find the model's folder (downloading a hub name) and read its JSON files; its tokenizer is not looked at yet.
    ConfigError says what is wrong.
    """
    use_cache(config.download_dir)
    folder, own = DEMO_FOLDER, config.tokenizer is None and not config.skip_tokenizer_init
    weights = config.worker == "model" and config.load_format != "dummy"
    if config.model:
        folder = find_folder(
            config.model,
            config.revision,
            lambda found, complete: _look(config, as_read(config, found), complete),
            weights,
            peek=lambda header: check_header(header, own),
            more=(CODE,) if config.trust_remote_code else (),
            form=form_of(config),
        )
    return _look(config, as_read(config, without_gguf(config, folder, own)), False, weights)


def with_tokenizer(config: Config, info: ModelInfo) -> ModelInfo:
    """The same with its tokenizer, as tokenizer.json, or with that of --tokenizer."""
    if config.skip_tokenizer_init:
        return msgspec.structs.replace(info, tokenizer_folder="")
    folder = Path(info.folder)
    if config.tokenizer is not None:
        try:
            folder = without_gguf(config, find_folder(config.tokenizer, None, weights=False), True)
        except ConfigError as error:
            raise type(error)(f"--tokenizer: {str(error).removeprefix('model: ')}") from None
    mode = config.tokenizer_mode
    if (folder / SOURCES).is_file() and mode == "slow":  # a GGUF file's is made here as well
        mode = "auto"
    tokenizer = fast_tokenizer(folder, mode)
    ends, media = _end_tokens(config, info, tokenizer), info.media
    if info.vision is not None:
        media = with_tokens(media, info.vision.kind, named_tokens(tokenizer), added_tokens(tokenizer))
    return msgspec.structs.replace(info, tokenizer_folder=str(tokenizer), end_tokens=ends, media=media)


def _end_tokens(config: Config, info: ModelInfo, tokenizer: Path) -> list[int]:
    """Those of a GGUF file and of --override-generation-config are all that there are."""
    told = "eos_token_id" in config.json_object("override_generation_config")
    if told or info.pooling is not None or (Path(info.folder) / SOURCES).is_file():
        return info.end_tokens
    return with_end_of(tokenizer, info.end_tokens, info.vocab_size)


def _look(config: Config, folder: Path, complete: bool, weights: bool = False) -> ModelInfo:
    """What the small files of a folder say; with `complete` all of them are there, and are to be enough; with `weights`
    these are there, too.
    """
    check_folder(folder)
    whole = Values(folder / "config.json", read_json(folder / "config.json"))
    if config.worker == "model" and config.runner != "pooling":
        check_kind(whole.values, config.trust_remote_code)
    vision, text = _seen_and_said(config, whole)
    pooling, longest = None, None
    generation, defaults = _generation(config, folder)
    words = text.needed("vocab_size", LARGEST)
    reads = has_encoder(whole) and config.runner != "pooling" and config.convert in ("auto", "none")
    encoder, length = read_encoder(config, whole, generation, _extractor(folder), words) if reads else (None, 0)
    if encoder is not None:
        pass
    elif pools(config, whole, folder):
        pooling, longest = read_pooling(config, whole, text, folder, stored_shapes if weights else None)
        vision = vision if pooling.base else None
    else:
        _check_decoder(whole)
    hidden = text.whole("hidden_size", 1, LARGEST) or 0
    if config.worker == "model" and pooling is None and encoder is None:
        shape = find_architecture(whole.values, config.model_impl, config.quantization, whole.file)
        vision, hidden = (
            (adapted_vision(config, whole, folder), 0) if shape is None else (shape.vision, shape.hidden_size)
        )
        if complete and shape is not None and config.load_format != "dummy":
            check_index(folder, shape)
    if complete and config.tokenizer is None and not config.skip_tokenizer_init:
        check_source(folder, config.tokenizer_mode)
    return ModelInfo(
        folder=str(folder),
        tokenizer_folder=str(folder),
        architecture=architecture_name(whole),
        vocab_size=words,
        max_model_len=_longest(pooling, _model_length(config, text, longest)) if encoder is None else length,
        end_tokens=[] if pooling is not None else end_tokens(generation, text, words),
        sampling_defaults=sampling_defaults(defaults),
        pooling=pooling,
        encoder=encoder,
        media=_media(config, whole, vision is not None or _is_dual(pooling)) if _may_see(pooling, vision) else [],
        media_changes=changes_of(whole.values),
        vision=vision,
        hidden=hidden if pooling is None and encoder is None else 0,
    )


def _seen_and_said(config: Config, whole: Values) -> tuple[VisionSpec | None, Values]:
    """(its part that sees, if there is one, the part of config.json that is of texts)."""
    if (dual := text_part(whole)) is not None:
        return None, dual
    vision = None if config.model_impl == TRANSFORMERS else read_vision(whole.values, whole.file)
    if vision is not None or (config.model_impl != TRANSFORMERS and has_text_part(whole.values)):
        return vision, Values(whole.file, text_values(whole.values, whole.file))
    return vision, next((part for name in TEXT_PARTS if (part := whole.object(name)) is not None), whole)


def _generation(config: Config, folder: Path) -> tuple[Values, Values]:
    """(generation_config.json as it is overridden, what of it requests have by default)."""
    path = folder / "generation_config.json"
    override = read_override(config.json_object("override_generation_config"))
    own = {name: value for name, value in read_json(path, missing_ok=True).items() if in_file(name)}
    generation = Values(path, {**own, **override})
    return generation, (generation if config.generation_config == "auto" else Values(path, override))


def _extractor(folder: Path) -> Values:
    """How sounds become features, of a model that listens."""
    path = folder / "preprocessor_config.json"
    return Values(path, read_json(path, missing_ok=True))


def _is_dual(pooling: PoolingSpec | None) -> bool:
    return pooling is not None and pooling.dual is not None


def _may_see(pooling: PoolingSpec | None, vision: VisionSpec | None) -> bool:
    return pooling is None or pooling.dual is not None or vision is not None


def _longest(pooling: PoolingSpec | None, texts: int) -> int:
    """The longest prompt, which may be a picture, where texts may be so long."""
    return texts if pooling is None or pooling.dual is None else max(texts, pooling.dual.picture + 1)


def _media(config: Config, whole: Values, sees: bool) -> list[str]:
    """What it takes beside texts: of a model whose layers transformers has, nothing."""
    return modalities_of(whole.values, architecture_name(whole)) if sees or config.worker != "model" else []


def _check_decoder(whole: Values) -> None:
    """ConfigError of a model with an encoder that writes nothing we know of, and of one that may lack most words."""
    name = architecture_name(whole)
    if rows := whole.texts("score_tokens"):
        raise ConfigError(
            f"--runner generate: the file of this {name} has what it judges by, the rows of {' and '.join(rows)}, and "
            f"does not say whether embeddings are those of all words; take the model as it was published ({whole.file})"
        )
    if whole.values.get("is_encoder_decoder") is True and not name.endswith("ForCausalLM"):
        raise ConfigError(
            f"model: {name} cannot be served: it has an encoder ({whole.file} says is_encoder_decoder), and of those "
            "models can be served that write (ForConditionalGeneration)"
        )


def _model_length(config: Config, text: Values, sentences: int | None) -> int:
    """The length that the model was made for, or --max-model-len where that is not longer. `sentences`: that of
    sentence-transformers' files, if --max-model-len says nothing.
    """
    owns = (text.whole(name, 1, LARGEST) for name in LENGTHS)
    own, wanted = next((length for length in owns if length is not None), None), config.max_model_len
    if own is not None and text.text("model_type") in COUNTED_FROM_PADDING:
        padding = text.whole("pad_token_id", 0, LARGEST)
        own -= 1 + (1 if padding is None else padding)
    if wanted is None and sentences is not None:
        wanted = sentences if own is None else min(own, sentences)
    if own is None:
        if wanted is None:
            raise ConfigError(f"--max-model-len: {text.file} does not say how long a text the model takes; set it")
        return wanted
    longest = max(own, _stretched_length(text))
    if wanted is not None and wanted > longest:
        raise ConfigError(f"--max-model-len: {wanted} is more than the {longest} positions of the model")
    plain = _plain_length(text) or longest
    if wanted is not None and wanted > plain:
        raise ConfigError(
            f"--max-model-len: {wanted} is more than the {plain} positions up to which the model attends as others do: "
            f"beyond, it was made for dual chunk attention ({text.file}), which there is none of here; "
            f"""--hf-overrides '{{"{DUAL_CHUNKS}": null}}' serves longer texts all the same"""
        )
    return wanted or min(own, plain)


def _plain_length(text: Values) -> int | None:
    """Of a model that remaps positions of longer texts, chunk by chunk (Qwen2.5-1M); not of shorter ones."""
    chunks = text.object(DUAL_CHUNKS)
    if chunks is None:
        return None
    return chunks.whole("original_max_position_embeddings", 1, LARGEST) or chunks.whole("chunk_size", 1, LARGEST)


def _stretched_length(text: Values) -> int:
    """How long texts can be where config.json has a rope for longer ones beside the positions that were trained, as the
    cards of Qwen2.5 and Qwen3 say to write yarn; 0 where it says nothing more."""
    rope = text.object("rope_parameters") or text.object("rope_scaling")
    if rope is None:
        return 0
    kind = rope.text("rope_type") or rope.text("type")
    original, factor = (rope.real(name, 1, LARGEST) for name in ("original_max_position_embeddings", "factor"))
    yarn = int(original * factor) if kind == "yarn" and original and factor else 0
    return max(yarn, (text.whole("max_sequence_length", 1, LARGEST) or 0) if kind == "linear" else 0)
