"""Files become samples, samples windows, and windows the features that transformers' extractor makes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from transformers import WhisperFeatureExtractor

from actorserve.actors.sound.decode import SoundError, decode
from actorserve.actors.sound.features import LogMel
from actorserve.actors.sound.windows import cut
from tests.support.models.sounds.whispers import RATE, encoded, sound, wav

FORMS = [("mp3", "libmp3lame"), ("ogg", "libopus"), ("mp4", "aac"), ("webm", "libopus"), ("flac", "flac")]


@pytest.mark.parametrize("mels", [80, 128])
def test_features_are_those_of_transformers(mels: int) -> None:
    samples = sound(7.3) / 32768.0
    extractor = WhisperFeatureExtractor(feature_size=mels)
    padded = np.pad(samples, (0, 30 * RATE - len(samples)))
    wanted = extractor._np_extract_fbank_features(padded[None], "cpu")[0]  # by torch they are off by 3e-5
    found = LogMel(mels, 400, 160, RATE, 30 * RATE)(samples)
    assert found.shape == wanted.shape and np.abs(found - wanted).max() < 1e-5


def test_who_decodes_for_long_says_that_it_gets_on() -> None:
    beats: list[int] = []
    decode(encoded(sound(4.0), "mp3", "libmp3lame"), RATE, lambda: beats.append(1))
    assert len(beats) > 20


def test_a_file_without_loss_has_the_same_samples() -> None:
    samples = sound(1.2)
    assert np.array_equal(decode(wav(samples), RATE), samples / np.float32(32768))
    assert np.array_equal(decode(encoded(samples, "flac", "flac"), RATE), samples / np.float32(32768))


@pytest.mark.parametrize(("container", "codec"), FORMS)
def test_forms_that_are_read(container: str, codec: str) -> None:
    samples = sound(1.2)
    found = decode(encoded(samples, container, codec), RATE)
    assert abs(len(found) - len(samples)) < RATE // 5
    assert 0.5 < np.abs(found).mean() / np.abs(samples / 32768).mean() < 1.5


def damaged(data: bytes) -> bytes:
    """In its middle."""
    middle = len(data) // 2
    return data[:middle] + b"\xa5" * 600 + data[middle + 600 :]


@pytest.mark.parametrize(
    ("container", "codec", "change"),
    [
        ("adts", "aac", lambda data: data[:-3]),
        ("flac", "flac", lambda data: data[:-10]),
        ("mp3", "libmp3lame", lambda data: data + bytes(4096)),
        ("mp3", "libmp3lame", lambda data: data + b"<html>no sound</html>" * 99),
        ("mp3", "libmp3lame", damaged),
    ],
)
def test_what_is_damaged_is_left_out(container: str, codec: str, change: Callable[[bytes], bytes]) -> None:
    samples = sound(4.0)
    found = decode(change(encoded(samples, container, codec)), RATE)
    assert 0.7 < len(found) / len(samples) < 1.2
    assert 0.4 < np.abs(found).mean() / np.abs(samples / 32768).mean() < 1.5


def test_files_that_were_joined_are_one_sound() -> None:
    """Also where their rates differ."""
    one, other = encoded(sound(2.0), "mp3", "libmp3lame"), encoded(sound(1.0), "mp3", "libmp3lame", rate=44_100)
    assert abs(len(decode(one + other, RATE)) / RATE - 3.0) < 0.3


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no sound at all",
        wav(sound(0.5))[:30],
        b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:1/a.wav\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
    ],
    ids=["empty", "text", "cut", "playlist", "list"],
)
def test_what_is_no_sound_is_refused(data: bytes) -> None:
    with pytest.raises(SoundError):
        decode(data, RATE)


def test_windows_follow_one_another_and_end_where_it_is_quiet() -> None:
    samples = np.ones(int(5.0 * RATE), np.float32)
    samples[int(1.75 * RATE) : int(1.9 * RATE)] = 0.0
    windows = cut(samples, RATE, 2.0)
    assert windows[0][0] == 0 and windows[-1][1] == len(samples)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(windows))
    assert all(end - start <= 2 * RATE for start, end in windows)
    assert 1.75 * RATE <= windows[0][1] <= 1.9 * RATE
