"""Numbers of connections, who has them, and who is to give one up."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from actorserve.actors.supervisor.connections.admission import RESERVE, Admission, Numbers, client_of


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
    ],
)
def test_an_address_is_a_client_and_so_is_a_network_of_64_bits(address: str, client: str) -> None:
    assert client_of(address) == client


def test_who_has_most_is_known_whoever_comes_and_goes() -> None:
    rng = random.Random(1)
    numbers, taken = Numbers(range(60)), dict[int, str]()
    for _ in range(5000):
        client = f"10.0.0.{rng.randrange(12)}"
        if rng.random() < 0.5 and (number := numbers.take(client)) is not None:
            assert number == min(set(range(60)) - taken.keys())
            taken[number] = client
        elif taken:
            numbers.release(number := rng.choice(list(taken)))
            del taken[number]
        counts = Counter(taken.values())
        assert numbers.counts == counts and numbers.free() == sorted(set(range(60)) - taken.keys())
        largest, most = numbers.largest()
        assert most == max(counts.values(), default=0) == counts[largest]
        assert numbers.of(largest) == [number for number in taken if taken[number] == largest]
    assert set(map(len, (numbers._with[most] for most in numbers._with))) != {0}


def test_who_has_as_many_as_others_gets_none_of_theirs() -> None:
    admission = Admission(5, most_each=4)
    assert [admission.take(client) for client in "aaab"] == [0, 1, 2, 3]
    assert admission.who_yields("b") == "a"
    assert admission.take("b") == 4 and admission.take("b") is None
    assert admission.who_yields("b") is None and admission.who_yields("a") is None and admission.who_yields("c") == "a"
    admission.release(3)
    admission.release(4)
    assert admission.take("a") == 3 and admission.take("a") is None, "its share is used up, though there is room"
    assert admission.who_yields("a") is None
    assert [admission.reserve.take("a") for _ in range(RESERVE + 1)] == [*range(5, 5 + RESERVE), None]
    assert admission.is_reserved(5) and not admission.is_reserved(4)
    admission.release(5)
    assert admission.reserve.take("b") == 5
