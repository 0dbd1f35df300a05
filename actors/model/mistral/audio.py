"""What a model hears by, of `multimodal.whisper_model_args` in params.json: config.json, and files of its extractor.

Positions of its encoder are sines that Mistral's files leave out, and those of transformers have.
"""

from __future__ import annotations

import json
import math
from array import array
from typing import Any

from ..values import Values

LARGEST = 1 << 24
WHISPER = "whisper_model_args"
TOKEN = 24  # what stands for a part of a sound, in all of its vocabularies
POSITIONS = 1500  # of a window, where nobody says it
SLOWEST = 10_000  # of the sines
SINES = "audio_tower.embed_positions.weight"


def audio_of(given: Values) -> Values | None:
    """What params.json says of it; None: the model hears nothing."""
    media = given.object("multimodal")
    return media.object(WHISPER) if media is not None else None


def hearing(text: dict[str, Any], given: Values) -> dict[str, Any]:
    """What of config.json is of sounds. ConfigError names what of it is not known."""
    encoder, spectrum = _parts(given)
    if encoder.flag("causal"):
        raise encoder.wrong("causal", "false (Voxtral Realtime is not served)")
    sizes = {
        "hidden_size": encoder.needed("dim", LARGEST),
        "intermediate_size": encoder.needed("hidden_dim", LARGEST),
        "num_hidden_layers": encoder.needed("n_layers", LARGEST),
        "num_attention_heads": encoder.needed("n_heads", LARGEST),
        "num_mel_bins": spectrum.needed("num_mel_bins", LARGEST),
        "max_source_positions": _positions(encoder),
    }
    grouped, joined = given.object("downsample_args"), sizes["intermediate_size"] / sizes["hidden_size"]
    if grouped is None or grouped.needed("downsample_factor", LARGEST) != joined:
        raise given.wrong("downsample_args", f"an object with downsample_factor, hidden_dim / dim ({joined:g}),")
    return {
        "architectures": ["VoxtralForConditionalGeneration"],
        "model_type": "voxtral",
        "text_config": text,
        "audio_config": {"model_type": "voxtral_encoder", **sizes},
        "audio_token_id": TOKEN,
        "projector_hidden_act": "gelu",
    }


def extractor(given: Values) -> dict[str, Any]:
    """preprocessor_config.json."""
    encoder, spectrum = _parts(given)
    rate, hop = spectrum.needed("sampling_rate", LARGEST), spectrum.needed("hop_length", LARGEST)
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": spectrum.needed("num_mel_bins", LARGEST),
        "sampling_rate": rate,
        "hop_length": hop,
        "n_fft": spectrum.needed("window_size", LARGEST),
        "chunk_length": 2 * _positions(encoder) * hop // rate,
    }


def sines(given: Values) -> bytes:
    """The file of safetensors with the positions: half of each are sines, half cosines, ever slower ones."""
    encoder, _ = _parts(given)
    count, half = _positions(encoder), encoder.needed("dim", LARGEST) // 2
    speeds = [math.exp(-math.log(SLOWEST) * number / max(1, half - 1)) for number in range(half)]
    numbers = array("f")
    for place in range(count):
        numbers.extend(wave(place * speed) for wave in (math.sin, math.cos) for speed in speeds)
    about = {"dtype": "F32", "shape": [count, 2 * half], "data_offsets": [0, len(numbers) * numbers.itemsize]}
    header = json.dumps({SINES: about}).encode()
    return len(header).to_bytes(8, "little") + header + numbers.tobytes()


def _parts(given: Values) -> tuple[Values, Values]:
    """(of the encoder, of the spectra)."""
    encoder = given.object("encoder_args")
    spectrum = encoder.object("audio_encoding_args") if encoder is not None else None
    if encoder is None or spectrum is None:
        raise given.wrong("encoder_args", "an object with audio_encoding_args")
    return encoder, spectrum


def _positions(encoder: Values) -> int:
    return encoder.whole("max_source_positions", 1, LARGEST) or POSITIONS
