"""Pictures that a script gives to an LLM object, by `generate` and by `chat`."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from actorserve import LLM, SamplingParams
from tests.support.models.vision.films import decoded, film
from tests.support.models.vision.folders import picture, vision_folder

PARAMS = SamplingParams(max_tokens=3, ignore_eos=True)
PAD = "<|vision_start|><|image_pad|><|vision_end|>"
FILM = "<|vision_start|><|video_pad|><|vision_end|>"
TOKENS = 40  # of a picture of 60 times 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_folder("qwen2_5_vl", tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), worker="scripted", max_num_seqs=4, limit_mm_per_prompt={"image": 2, "video": 2}) as made:
        yield made


def pil(seed: int = 0) -> Image.Image:
    return Image.open(io.BytesIO(picture(60, 40, seed)))


def ids(llm: LLM, prompt: Any) -> list[int]:
    [output] = llm.generate(prompt, PARAMS, use_tqdm=False)
    return list(output.prompt_token_ids)


def chat_ids(llm: LLM, *parts: dict[str, Any]) -> list[int]:
    [output] = llm.chat([{"role": "user", "content": list(parts)}], PARAMS, use_tqdm=False)
    return list(output.prompt_token_ids)


def test_generate_takes_pictures_and_arrays(llm: LLM) -> None:
    text = f"See {PAD} and say"
    one = ids(llm, {"prompt": text, "multi_modal_data": {"image": pil()}})
    assert one.count(3) == TOKENS
    assert one == ids(llm, {"prompt": text, "multi_modal_data": {"image": [np.array(pil())]}})
    given = {"prompt_token_ids": [1, 2, 3, 4], "multi_modal_data": {"image": pil()}}
    assert ids(llm, given) == [1, 2, *[3] * TOKENS, 4]
    expanded = {"prompt_token_ids": [1, 2, *[3] * TOKENS, 4], "multi_modal_data": {"image": pil()}}
    assert ids(llm, expanded) == ids(llm, given)


def test_chat_takes_pictures_beside_addresses(llm: LLM) -> None:
    url = f"data:image/png;base64,{base64.b64encode(picture(60, 40)).decode()}"
    at = {"type": "image_url", "image_url": {"url": url}}
    text = {"type": "text", "text": "What?"}
    assert chat_ids(llm, at, text) == chat_ids(llm, {"type": "image_pil", "image_pil": pil()}, text)
    both = chat_ids(llm, {"type": "image_pil", "image_pil": pil(1)}, text, at)
    assert both.count(3) == 2 * TOKENS
    assert llm.reset_mm_cache() is True
    assert chat_ids(llm, at, text).count(3) == TOKENS


def test_films_are_frames_or_files(llm: LLM, tmp_path: Path) -> None:
    """In each form the tokens of a film are those that it has as a data: address."""
    data = film(4, rate=1)
    frames = [Image.fromarray(np.asarray(one)) for one in decoded(data)]
    (tmp_path / "film.mp4").write_bytes(data)
    text = {"type": "text", "text": "What?"}
    url = f"data:video/mp4;base64,{base64.b64encode(data).decode()}"
    wanted = chat_ids(llm, {"type": "video_url", "video_url": {"url": url}}, text)
    for given in (str(tmp_path / "film.mp4"), tmp_path / "film.mp4", frames, np.stack(list(map(np.array, frames)))):
        assert chat_ids(llm, {"type": "video_pil", "video_pil": given}, text) == wanted
    one = ids(llm, {"prompt": f"See {FILM}", "multi_modal_data": {"video": frames}})
    two = ids(llm, {"prompt": f"See {FILM}{FILM}", "multi_modal_data": {"video": [frames, tmp_path / "film.mp4"]}})
    pads = llm.get_tokenizer().encode("<|video_pad|>", add_special_tokens=False)
    assert one.count(pads[0]) == wanted.count(pads[0]) > 0 and two.count(pads[0]) == 2 * one.count(pads[0])


def test_one_prompt_has_pictures_and_films(llm: LLM) -> None:
    frames = [pil(seed) for seed in range(4)]
    [film_pad] = llm.get_tokenizer().encode("<|video_pad|>", add_special_tokens=False)
    alone = ids(llm, {"prompt": FILM, "multi_modal_data": {"video": frames}}).count(film_pad)
    data = {"image": [pil(), pil(1)], "video": frames}
    both = ids(llm, {"prompt": f"{PAD}See {FILM} and {PAD}", "multi_modal_data": data})
    assert both.count(3) == 2 * TOKENS and both.count(film_pad) == alone > 0
    assert both.index(3) < both.index(film_pad) < len(both) - both[::-1].index(3)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (
            {"prompt": "x", "multi_modal_data": {"image": "x.png"}},
            r"prompt 0: multi_modal_data.image\[0\]: a picture is",
        ),
        (
            {"prompt": "x", "multi_modal_data": {"smell": [1]}},
            "prompt 0: multi_modal_data: a dict with some of the keys image, video, audio",
        ),
        ({"prompt": "x", "multi_modal_data": {"video": "no.mp4"}}, r"video\[0\]: no.mp4 cannot be read: No such file"),
        ({"prompt": "x", "multi_modal_data": {"video": []}}, r"video\[0\]: a film is a list of pictures"),
        ({"prompt": FILM * 3, "multi_modal_data": {"video": [["x"]] * 3}}, r"video\[0\]\[0\]: a picture is"),
        ({"prompt": "x", "multi_modal_data": {"image": [np.zeros((2, 2))]}}, "uint8"),
        ({"prompt": PAD * 3, "multi_modal_data": {"image": [pil()] * 3}}, "--limit-mm-per-prompt"),
        ({"prompt": "nothing", "multi_modal_data": {"image": pil()}}, "has 0 times <|image_pad|>"),
        ({"prompt_token_ids": [1], "multi_modal_data": {"image": pil()}}, "has 0 times <|image_pad|>"),
    ],
)
def test_what_cannot_be_is_refused(llm: LLM, prompt: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("|", r"\|")):
        llm.generate(prompt, PARAMS, use_tqdm=False)


def test_a_text_with_the_token_of_an_embedding_is_refused(tmp_path: Path) -> None:
    """Also where another text stands for a picture in a prompt."""
    folder = vision_folder("gemma3", tmp_path)
    with LLM(str(folder), worker="scripted", max_num_seqs=1) as llm:
        picture_of = {"type": "image_pil", "image_pil": pil()}
        with pytest.raises(ValueError, match="messages: the prompt has 5 tokens for embeddings"):
            chat_ids(llm, picture_of, {"type": "text", "text": "What is <image_soft_token>?"})
