"""A tiny Whisper with random weights, its tokenizer with languages and timestamps, and sounds for it.

Its windows are two seconds long. It is asked here and by transformers' generate(): who writes down the same.
"""

from __future__ import annotations

import io
import json
import re
import wave
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.models.checkpoints import TEXT

RATE, SECONDS, STEP = 16_000, 2, 0.02
WORDS = 300
LANGUAGES = ("en", "de", "fr")
SPECIAL = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
]
TIMES = [f"<|{number * STEP:.2f}|>" for number in range(int(SECONDS / STEP) + 1)]


def write_whisper(folder: Path) -> None:
    """A checkpoint as save_pretrained of model and processor leaves it."""
    import torch
    from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    from actorserve.actors.worker.adapter.verify import randomise

    ids = _write_tokenizer(folder)
    marks: dict[str, Any] = {
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|endoftext|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "decoder_start_token_id": ids["<|startoftranscript|>"],
    }
    config = WhisperConfig(
        vocab_size=len(ids),
        num_mel_bins=20,
        d_model=48,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        max_source_positions=SECONDS * 50,
        max_target_positions=64,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **marks,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = WhisperForConditionalGeneration(config).float().eval()
    randomise(model, seed=3)
    with torch.no_grad():  # a timestamp is seldom likelier than a word
        model.get_input_embeddings().weight[ids[TIMES[0]] :] *= 0.3
    model.generation_config = GenerationConfig(
        **marks,
        max_length=64,
        is_multilingual=True,
        no_timestamps_token_id=ids["<|notimestamps|>"],
        prev_sot_token_id=ids["<|startofprev|>"],
        lang_to_id={f"<|{code}|>": ids[f"<|{code}|>"] for code in LANGUAGES},
        task_to_id={task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
        max_initial_timestamp_index=20,
        alignment_heads=[[1, 0], [1, 2], [0, 3]],
        suppress_tokens=[5, 6, 7],
        begin_suppress_tokens=[8, ids["<|endoftext|>"]],
        return_timestamps=False,
    )
    model.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=20, chunk_length=SECONDS).save_pretrained(folder)


def _write_tokenizer(folder: Path) -> dict[str, int]:
    """Byte-level BPE, then special tokens, then timestamps, which are not special. Returns all ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_tokens([AddedToken(word, special=True) for word in SPECIAL])
    tokenizer.add_tokens([AddedToken(word, special=False) for word in TIMES])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ids: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    return ids


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    """Tones and noise, as int16."""
    rng = np.random.default_rng(seed)
    at = np.arange(int(seconds * RATE)) / RATE
    tones: Any = sum(np.sin(2 * np.pi * hertz * at + rng.uniform(0, 6)) for hertz in rng.uniform(100, 4000, 5))
    loud = 0.1 + 0.9 * np.abs(np.sin(at * rng.uniform(2, 5)))
    samples = (tones * loud / 6 + rng.normal(0, 0.02, len(at))) * 30_000
    found: np.ndarray = np.clip(samples, -32_768, 32_767).astype(np.int16)
    return found


def wav(samples: np.ndarray) -> bytes:
    """A file of these."""
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return made.getvalue()


def encoded(samples: np.ndarray, container: str, codec: str, rate: int = RATE) -> bytes:
    """The same in another form, of which opus is always at 48 kHz."""
    import av

    made = io.BytesIO()
    with av.open(made, "w", format=container) as file:
        rate = 48_000 if codec == "libopus" else rate
        stream: Any = file.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        resampler = av.AudioResampler(format=stream.format.name, layout="mono", rate=rate, frame_size=stream.frame_size)
        for part in [*resampler.resample(frame), *resampler.resample(None), None]:
            file.mux(stream.encode(part))
    return made.getvalue()


class Reference:
    """transformers' own."""

    def __init__(self, folder: Path) -> None:
        import torch
        from tokenizers import Tokenizer
        from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

        self.model: Any = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.extractor = WhisperFeatureExtractor.from_pretrained(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def tokens(self, samples: np.ndarray, **options: Any) -> list[int]:
        """What generate() writes behind its first tokens, with the end."""
        import torch

        given = self.extractor(samples / 32768.0, sampling_rate=RATE, return_tensors="pt").input_features
        with torch.inference_mode():
            made = self.model.generate(given, do_sample=False, num_beams=1, **options)
        return [int(token) for token in made[0]]

    def window(self, samples: np.ndarray, begun: list[str], timestamps: bool) -> list[int]:
        """What is written about one window behind `begun`, by the search of all models with Whisper's own rules."""
        import torch
        from transformers import GenerationMixin, LogitsProcessorList

        given = self.extractor(samples / 32768.0, sampling_rate=RATE, return_tensors="pt").input_features
        ids = [self.tokenizer.token_to_id(word) for word in begun]
        config = type(self.model.generation_config)(**self.model.generation_config.to_dict())
        config.return_timestamps, config.no_speech_threshold = timestamps, None
        rules = self.model._retrieve_logit_processors(config, LogitsProcessorList(), len(ids), 1, "cpu")
        with torch.inference_mode():
            made = GenerationMixin.generate(
                self.model,
                given,
                generation_config=config,
                decoder_input_ids=torch.tensor([ids]),
                logits_processor=LogitsProcessorList(rules),
                do_sample=False,
                num_beams=1,
                max_new_tokens=64 - len(ids),
            )
        return [int(token) for token in made[0][len(ids) :]]

    def figures(self, samples: np.ndarray, begun: list[str], drawn: list[int]) -> tuple[float, float]:
        """(mean logprob of what was drawn, among what could be; how likely it is that nothing is said)."""
        import torch
        from transformers import LogitsProcessorList

        given = self.extractor(samples / 32768.0, sampling_rate=RATE, return_tensors="pt").input_features
        ids = [self.tokenizer.token_to_id(word) or 0 for word in begun]
        config = type(self.model.generation_config)(**self.model.generation_config.to_dict())
        config.return_timestamps, config.no_speech_threshold = True, None
        rules = self.model._retrieve_logit_processors(config, LogitsProcessorList(), len(ids), 1, "cpu")
        with torch.inference_mode():
            logits = self.model(given, decoder_input_ids=torch.tensor([[*ids, *drawn[:-1]]])).logits[0].float()
        scores = []
        for at in range(len(drawn)):
            score = logits[None, len(ids) - 1 + at].clone()
            for rule in rules:
                score = rule(torch.tensor([[*ids, *drawn[:at]]]), score)
            scores.append(score[0])
        likely = self.model._retrieve_avg_logprobs(scores, torch.tensor(drawn), 0.0)
        silent = logits[0].softmax(-1)[self.tokenizer.token_to_id("<|nospeech|>") or 0]
        return float(likely), float(silent)

    def words(self, samples: np.ndarray, begun: list[int], drawn: list[int]) -> list[tuple[str, float, float]]:
        """When each word was said, by transformers' own reading of what the cross attention looks at."""
        import torch
        from transformers.models.whisper import tokenization_whisper as theirs

        about = self.extractor(samples / 32768.0, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True)
        self.model.set_attn_implementation("eager")
        with torch.inference_mode():
            ids = torch.tensor([[*begun, *drawn[:-1]]])
            seen = self.model(about.input_features, decoder_input_ids=ids, output_attentions=True).cross_attentions
        made = _Made(cross_attentions=[seen], sequences=torch.tensor([[*begun, *drawn]]))
        heads, frames = self.model.generation_config.alignment_heads, about.attention_mask.sum(-1)
        times = self.model._extract_token_timestamps(made, heads, num_frames=frames, num_input_ids=len(begun))
        ends = [float(time) for time in times[0, len(begun) :]]
        spans = list(zip([0.0, *ends[:-1]], ends, strict=True))
        first = self.tokenizer.token_to_id(TIMES[0]) or 0
        found: list[tuple[str, float, float]] = []
        part: list[int] = []
        for at, token in enumerate([*drawn, first]):
            if token < first - len(SPECIAL):
                part.append(at)
                continue
            words, _, places = theirs._combine_tokens_into_words(_Speller(self.tokenizer), [drawn[one] for one in part])
            for word, inside in zip(words, places, strict=True):
                start, end = spans[part[inside[0]]][0], spans[part[inside[-1]]][1]
                found.append((word.strip(), round(start, 2), round(end, 2)))
            part = []
        return [word for word in found if word[0]]

    def text(self, tokens: list[int]) -> str:
        """Without special tokens and timestamps; bytes on two sides of one are no character."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=False)
        return re.sub(r"<\|[^|<>]*\|>", "", text)


class _Made(dict[str, Any]):
    """What generate() hands on, by attributes and by keys."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class _Speller:
    """A tokenizer as transformers' reading of words asks it."""

    language = "english"

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.token_to_id("<|endoftext|>")

    def decode(self, tokens: list[int], decode_with_timestamps: bool = False) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))
