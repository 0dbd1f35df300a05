"""What a whole server answers to pictures: the texts of transformers on the same weights, whoever dies."""

from __future__ import annotations

import base64
import copy
import io
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import openai
import pytest
import torch

from actorserve.actors.media.processors import make_processors
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.media import MediaSource
from tests.support.models.vision.families import ADAPTED, DIVIDED, EVERY, checkpoint
from tests.support.models.vision.films import film
from tests.support.models.vision.reference import Prompt, Reference, picture
from tests.support.runs.original import Imports
from tests.support.server import Server
from tests.support.streams.cases import CHAT
from tests.support.streams.pieces import Pieces, answer_of, post

QUESTION = "What is the capital?"
ANSWER = 12
QUICK = "qwen3_vl"
SIZES = [(40, 28), (24, 52), (32, 32)]


class Seeing(NamedTuple):
    """A server and transformers' model of the same weights."""

    server: Server
    reference: Reference
    name: str

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.server.base_url}/v1", api_key="none", max_retries=0, timeout=120)


def serve(family: str, root: Path, *options: str) -> Iterator[Seeing]:
    folder = checkpoint(family, root)
    reference = Reference(family, folder)
    limits = (
        "--enable-mm-embeds",
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--max-model-len",
        "512",
        "--max-num-seqs",
        "8",
    )
    with Server(
        str(folder), *limits, "--admin-api-key", "master", "--max-restarts", "1000", *options, imports=Imports.PLAIN
    ) as server:
        yield Seeing(server, reference, str(folder))


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeing]:
    yield from serve(QUICK, tmp_path_factory.mktemp("seeing"), "--enable-lora")


def messages(seeds: list[int], text: str = QUESTION) -> list[Any]:
    content: list[dict[str, Any]] = []
    for seed in seeds:
        file = io.BytesIO()
        picture(seed, *SIZES[seed % 3]).save(file, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        content += [{"type": "text", "text": "And"}, {"type": "image_url", "image_url": {"url": url}}]
    return [{"role": "user", "content": [*content, {"type": "text", "text": text}]}]


def ask(client: openai.OpenAI, model: str, seeds: list[int], count: int = ANSWER, text: str = QUESTION) -> Any:
    more = {"ignore_eos": True, "return_token_ids": True}
    return client.chat.completions.create(
        model=model, messages=messages(seeds, text), max_tokens=count, temperature=0, extra_body=more
    )


def expected(reference: Reference, ids: list[int], seeds: list[int], count: int = ANSWER) -> list[int]:
    """By transformers, of the ids that the server has made."""
    inputs = reference.pixels(*(picture(seed, *SIZES[seed % 3]) for seed in seeds)) if seeds else {}
    return reference.generate(Prompt(ids, [], inputs | reference.kinds(ids)), count)


def check(seeing: Seeing, seeds: list[int]) -> None:
    answer = ask(seeing.client(), seeing.name, seeds)
    ids = answer.model_extra["prompt_token_ids"]
    assert answer.choices[0].model_extra["token_ids"] == expected(seeing.reference, ids, seeds)


@pytest.mark.parametrize("seeds", [[], [0], [1, 2], [2, 2, 0]])
def test_texts_are_those_of_transformers(seeing: Seeing, seeds: list[int]) -> None:
    check(seeing, seeds)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "count"],
    "additionalProperties": False,
}


def test_a_schema_for_what_is_seen(seeing: Seeing) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "seen", "schema": SCHEMA, "strict": True}}
    given: Any = {"model": seeing.name, "messages": messages([3]), "max_tokens": 60, "temperature": 0}
    choice = seeing.client().chat.completions.create(**given, response_format=form).choices[0]
    seen = json.loads(choice.message.content)
    assert choice.finish_reason == "stop" and seen["kind"] in ("cat", "dog") and 0 <= seen["count"] <= 9


def test_decisions_about_a_picture(seeing: Seeing) -> None:
    """The answers are those of a chat, and depend on what is shown."""
    question: Any = {"type": "choice", "instructions": "Which?", "choices": [{"value": "a"}, {"value": "b"}]}
    found = []
    for seed in (1, 2, 1):
        shown = messages([seed])[0]["content"][1]["image_url"]["url"]
        parts = [{"type": "input_text", "text": "Look"}, {"type": "input_image", "image_url": shown}]
        asked: Any = {"input": [{"role": "user", "content": parts}], "questions": [question, question]}
        answers: Any = seeing.client().decisions.create(model=seeing.name, **asked).answers
        first, second = ([one.probability for one in answer.probabilities] for answer in answers)
        assert first == pytest.approx(second, abs=1e-5) and sum(first) == pytest.approx(1)
        found.append(first[0])
    assert found[0] == pytest.approx(found[2], abs=1e-5) and found[0] != pytest.approx(found[1], abs=1e-5)


def test_system_one_about_a_picture(seeing: Seeing) -> None:
    """As of /v1/decisions, with the picture before the state; what is wrong with one is told by its place."""
    client = seeing.client()
    shown = [messages([seed])[0]["content"][1]["image_url"]["url"] for seed in (1, 2)]
    question: Any = {"type": "choice", "instructions": "Which?", "criteria": {"a": None, "b": None}}
    body = {"state": "Look", "questions": {"q": question}}
    found = []
    for url in shown:
        told = httpx.post(f"{seeing.server.base_url}/v1/systemone", json=body | {"images": [url]}, timeout=60)
        assert told.status_code == 200, told.text
        parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "Look"}]
        one: Any = {"type": "choice", "instructions": "Which?", "choices": [{"value": "a"}, {"value": "b"}]}
        asked: Any = {"input": [{"role": "user", "content": parts}], "questions": [one]}
        answer: Any = client.decisions.create(model=seeing.name, **asked).answers[0]
        found.append(told.json()["answers"]["q"]["probabilities"]["a"])
        assert found[-1] == pytest.approx(answer.probabilities[0].probability, abs=1e-5)
    assert found[0] != pytest.approx(found[1], abs=1e-5)
    broken = {"images": [shown[0], "data:image/png;base64,eA=="]}
    refused = httpx.post(f"{seeing.server.base_url}/v1/systemone", json=body | broken, timeout=60)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "images[1]", refused.text
    film = httpx.post(
        f"{seeing.server.base_url}/v1/systemone", json=body | {"audio": ["https://a.b/c.wav"]}, timeout=60
    )
    assert film.status_code == 400 and film.json()["error"]["message"].startswith("audio[0]"), film.text


def adapter(seeing: Seeing, folder: Path, targets: str) -> Any:
    """A PEFT model on a copy of the reference's, written to this folder."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules=targets, init_lora_weights=False)
    made = get_peft_model(copy.deepcopy(seeing.reference.model), config)
    made.save_pretrained(str(folder))
    return made.eval()


def load(seeing: Seeing, name: str, folder: Path) -> httpx.Response:
    return httpx.post(
        f"{seeing.server.base_url}/v1/load_lora_adapter",
        json={"lora_name": name, "lora_path": str(folder)},
        headers={"Authorization": "Bearer master"},
        timeout=60,
    )


def test_an_adapter_of_the_text_part(seeing: Seeing, tmp_path: Path) -> None:
    """Its texts are PEFT's, beside those of the model itself; one of the part that sees is refused by its name."""
    made = adapter(seeing, tmp_path / "text", r".*language_model.*\.(q_proj|v_proj|gate_proj|down_proj)")
    assert load(seeing, "tuned", tmp_path / "text").status_code == 200
    answer = ask(seeing.client(), "tuned", [5])
    ids = answer.model_extra["prompt_token_ids"]
    tuned = copy.copy(seeing.reference)
    tuned.model = made
    tokens = answer.choices[0].model_extra["token_ids"]
    assert tokens == expected(tuned, ids, [5]) != expected(seeing.reference, ids, [5])
    check(seeing, [5])
    adapter(seeing, tmp_path / "eyes", r".*visual.*\.qkv")
    refused = load(seeing, "eyes", tmp_path / "eyes")
    assert refused.status_code == 400 and "the part that sees or hears is not adapted" in refused.text


def test_an_adapter_of_pictures_is_theirs_where_the_model_is_asked(seeing: Seeing, tmp_path: Path) -> None:
    """--default-mm-loras: by no name, or its own; a text alone has none."""
    made = adapter(seeing, tmp_path, r".*language_model.*\.(q_proj|v_proj|gate_proj|down_proj)")
    base = seeing.reference
    tuned = copy.copy(base)
    tuned.model = made
    options = ("--enable-lora", "--default-mm-loras", json.dumps({"image": str(tmp_path)}), "--max-model-len", "512")
    with Server(seeing.name, "--device", "cpu", "--dtype", "float32", *options, imports=Imports.PLAIN) as server:
        client = seeing._replace(server=server).client()
        for name, seeds, reference in (
            (seeing.name, [5], tuned),
            ("image", [5], tuned),
            (seeing.name, [], seeing.reference),
        ):
            answer = ask(client, name, seeds)
            ids, tokens = answer.model_extra["prompt_token_ids"], answer.choices[0].model_extra["token_ids"]
            assert tokens == expected(reference, ids, seeds)
        assert expected(tuned, ids, []) != expected(base, ids, [])


def test_a_stream_is_the_whole_text_also_where_another_server_goes_on_with_it(seeing: Seeing) -> None:
    whole = ask(seeing.client(), seeing.name, [1]).choices[0].message.content
    given = {"model": seeing.name, "messages": messages([1]), "max_tokens": ANSWER, "temperature": 0}
    body = json.dumps({**given, "stream": True, "ignore_eos": True}).encode()
    pieces = Pieces(post(seeing.server, CHAT, body))
    wanted = answer_of(pieces.up_to(-1)[0])
    assert wanted["choices"][0]["content"] == [whole]
    for cut in (0, 1, len(pieces) // 2, len(pieces) - 1):
        before, trail = pieces.up_to(cut)
        behind, trail = Pieces(post(seeing.server, "/go_on", trail.go_on(CHAT, body, "cut"))).up_to(-1, trail)
        assert answer_of(before + behind) == wanted and trail.closed


def test_the_same_picture_hits_and_another_misses(seeing: Seeing) -> None:
    check_hits(seeing)


def check_hits(seeing: Seeing) -> None:
    def cached(seed: int) -> int:
        text = QUESTION * 12  # a prefix that ends in no picture, for those of whom none may
        details = ask(seeing.client(), seeing.name, [seed, 4], text=text).usage.prompt_tokens_details
        return int(details.cached_tokens if details else 0)

    assert cached(10) == 0
    assert cached(10) >= 32
    assert cached(13) < 16
    check(seeing, [10, 4])


def test_embeddings_in_the_place_of_a_picture(seeing: Seeing) -> None:
    """The texts are those of the picture, of which transformers' tower has made them."""
    client, seed = seeing.client(), 7
    wanted = ask(client, seeing.name, [seed])
    pixels = seeing.reference.pixels(picture(seed, *SIZES[seed % 3]))
    with torch.inference_mode():
        features = seeing.reference.model.model.get_image_features(**pixels)
    deepstack = [torch.cat(list(part)) for part in features.deepstack_features]
    rows = torch.cat([torch.cat(list(features.pooler_output)), *deepstack], -1)
    given = messages([seed])
    tensors = {"image_embeds": saved(rows), "image_grid_thw": saved(pixels["image_grid_thw"])}
    given[0]["content"][1] = {"type": "image_embeds", "image_embeds": tensors}
    more = {"ignore_eos": True, "return_token_ids": True}
    answer = client.chat.completions.create(
        model=seeing.name, messages=given, max_tokens=ANSWER, temperature=0, extra_body=more
    )
    assert answer.model_extra["prompt_token_ids"] == wanted.model_extra["prompt_token_ids"]  # type: ignore[index]
    assert answer.choices[0].model_extra["token_ids"] == wanted.choices[0].model_extra["token_ids"]  # type: ignore[index]


def saved(tensor: torch.Tensor) -> str:
    file = io.BytesIO()
    torch.save(tensor, file)
    return base64.b64encode(file.getvalue()).decode()


def shown_film(data: bytes) -> dict[str, Any]:
    return {
        "type": "video_url",
        "video_url": {"url": f"data:video/mp4;base64,{base64.b64encode(data).decode()}"},
    }


def test_a_film_and_a_picture(seeing: Seeing) -> None:
    check_film(seeing)


def check_film(seeing: Seeing, frames: int = 9) -> None:
    """Texts are transformers', of the tensors that a media actor makes; the same film hits, another misses."""
    folder = seeing.name
    config = Config(model=folder)
    model = resolve_model(Config(model=folder, worker="scripted"))
    for data, cached in ((film(frames, seed=1), False), (film(frames, seed=1), True), (film(frames, seed=2), False)):
        given = messages([1])
        given[0]["content"].insert(0, shown_film(data))
        answer = seeing.client().chat.completions.create(
            model=folder,
            messages=given,
            max_tokens=ANSWER,
            temperature=0,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        ids = answer.model_extra["prompt_token_ids"]  # type: ignore[index]
        steps: Any = make_processors(config, model)["video"].process(data, MediaSource("video", ""))
        made = next(one for one in steps if one is not None)
        token = seeing.reference.model.config.video_token_id
        assert ids.count(token) == made.count
        kinds = torch.tensor([[2 if one == token else int(one == seeing.reference.place) for one in ids]])
        inputs = seeing.reference.pixels(picture(1, *SIZES[1])) | {"mm_token_type_ids": kinds}
        inputs |= {name: torch.from_numpy(value) for name, value in made.arrays.items()}
        wanted = seeing.reference.generate(Prompt(ids, [], inputs), ANSWER)
        assert answer.choices[0].model_extra["token_ids"] == wanted  # type: ignore[index]
        details = answer.usage.prompt_tokens_details if answer.usage else None
        assert bool(details and (details.cached_tokens or 0) >= 32) == cached


def test_embeddings_are_made_anew_after_a_reset(seeing: Seeing) -> None:
    def reset(path: str) -> int:
        return httpx.post(f"{seeing.server.base_url}/{path}", headers={"X-Api-Key": "master"}).status_code

    check(seeing, [5])
    assert reset("reset_encoder_cache") == reset("reset_prefix_cache") == 200
    check(seeing, [5])
    seeing.server.wait_for(r"the encoder cache was reset: embeddings of \d+ pictures dropped")


def many(seeing: Seeing, kinds: list[str]) -> None:
    """Streams about pictures while each of these actors is killed once."""
    wrong: list[object] = []

    def one(seed: int) -> None:
        try:
            for turn in range(4):
                seeds = [seed + turn, *([seed] if seed % 2 else [])]
                answer = ask(seeing.client(), seeing.name, seeds, 60)
                ids = answer.model_extra["prompt_token_ids"]
                found = answer.choices[0].model_extra["token_ids"]
                if found != expected(seeing.reference, ids, seeds, 60):
                    wrong.append(seeds)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=one, args=(20 + 10 * number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for kind in kinds:
        os.kill(seeing.server.actors()[kind], signal.SIGKILL)
        seeing.server.wait_for(rf"{kind} is up", 120)
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in EVERY if family != QUICK])
def test_texts_of_each_family(family: str, tmp_path: Path) -> None:
    for seeing in serve(family, tmp_path):
        for seeds in ([], [0], [1, 2]):
            check(seeing, seeds)
        if family in ADAPTED:
            check_hits(seeing)
            if EVERY[family].film:
                check_film(seeing, 3)


@pytest.mark.slow
@pytest.mark.parametrize("family", DIVIDED)
def test_two_workers_each_see_all(family: str, tmp_path: Path) -> None:
    for seeing in serve(family, tmp_path, "--tensor-parallel-size", "2"):
        for seeds in ([], [0], [1, 2]):
            check(seeing, seeds)
        check_hits(seeing)
        check_film(seeing, 3)


@pytest.mark.slow
@pytest.mark.parametrize("family", [QUICK, "gemma3"])
def test_texts_are_right_whoever_dies(family: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    for seeing in serve(family, tmp_path):
        many(seeing, ["worker", "scheduler", "renderer-0", "detokenizer-0", "media-0", "worker", "scheduler"])


@pytest.mark.slow
def test_two_workers_see_alike(tmp_path: Path) -> None:
    for seeing in serve(QUICK, tmp_path, "--tensor-parallel-size", "2"):
        for seeds in ([], [0], [1, 2]):
            check(seeing, seeds)
