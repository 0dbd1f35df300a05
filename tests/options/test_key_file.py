"""The file of --key-file: what it says, and how it is told what cannot be, by line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve.actors.accounts.account import Account, digest_of, pack, unpack
from actorserve.actors.accounts.key_file import KeyFileError, as_accounts, read_key_file
from actorserve.actors.options.config import ConfigError, make_config

GOOD = """\
keys:
  - name: alice
    key: sk-alice
    requests_per_minute: 60
    tokens_per_minute: 1000
    concurrent: 4
    budget: 100000
    max_tokens: 64
    models: [small]
    priority: 5
  - name: bob
    sha256: {digest}
"""


def written(folder: Path, text: str) -> str:
    (folder / "keys.yaml").write_text(text)
    return str(folder / "keys.yaml")


def test_keys(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.format(digest=digest_of(b"sk-bob").hex().upper()))
    alice, bob = as_accounts(read_key_file(path), [])
    assert alice == Account(0, "alice", digest_of(b"sk-alice"), 60, 1000, 4, 100000, 64, ["small"], 5)
    assert bob == Account(1, "bob", digest_of(b"sk-bob")) and not bob.is_limited and alice.is_limited
    assert unpack(pack([alice, bob])) == [alice, bob] and unpack(b"") == []
    assert (alice.priority_of(0), alice.priority_of(9), bob.priority_of(-2)) == (5, 9, -2)
    assert alice.may_ask_for("small") and not alice.may_ask_for("large") and bob.may_ask_for("large")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expected `object`, got `null`"),
        ("keys: []", "line 1: .*length >= 1"),
        ("keys:\n  - name: a\n   key: b\n", "line 3: it is no YAML"),
        ("keys:\n  - key: b\n", "line 2: Object missing required field `name`"),
        ("keys:\n  - name: a\n    key: b\n    tokens: 4\n", "line 2: Object contains unknown field `tokens`"),
        ("keys:\n  - name: a\n    key: b\n    concurrent: 0\n", "line 4: concurrent: Expected `int` >= 1"),
        ("keys:\n  - name: a\n    key: b\n    concurrent: many\n", "line 4: concurrent: Expected `int"),
        ("keys:\n  - name: a b\n    key: b\n", "line 2: name: Expected `str` matching"),
        ("keys:\n  - name: a\n    key: b\n  - name: a\n    key: c\n", "line 4: name: a stands there twice"),
        ("keys:\n  - name: a\n    key: b\n  - name: c\n    key: b\n", "line 5: key: another entry has the same key"),
        ("keys:\n  - name: a\n", "line 2: key: an entry has either key or sha256"),
        ("keys:\n  - name: a\n    key: 'b '\n", "line 3: key: it must not begin or end with a space"),
        ("keys:\n  - name: a\n    key: b\n    key: c\n", "line 4: key: it stands there twice"),
        ("keys:\n  - name: a\n    key: b\n    models: [1]\n", "line 4: models: Expected `str`"),
        ("keys:\n  - name: a\n    key: b\n    [models]: c\n", "line 4: a field's name is a text"),
        ("keys:\n  - name: a\n    ? {key: b}\n", "line 3: a field's name is a text"),
        ("keys:\n  - name: a\n    key: 9999-99-99\n", "line 3: a date or number that cannot be"),
        ("keys:\n  - name: a\n    key: !!bool b\n", "line 3: a date or number that cannot be"),
        ('keys:\n  - name: a\n    key: "\\U99999999"\n', "line 3: a date or number that cannot be"),
        ('keys:\n  - name: a\n    key: b\n    models: ["\\ud800"]\n', "line 4: models: they must not hold control"),
        ("keys:\n  - name: a\n    key: admin\n", "line 3: key: it is a key of --api-key or --admin-api-key, too"),
    ],
)
def test_what_cannot_be_is_told_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"--key-file: \S+keys\.yaml(, |: ){said}"):
        make_config({"key_file": written(tmp_path, text), "admin_api_key": "admin"})


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--key-file: .*none\.yaml cannot be read: No such file"):
        make_config({"key_file": str(tmp_path / "none.yaml")})


def test_who_was_there_keeps_its_entry(tmp_path: Path) -> None:
    def accounts(*names: str) -> list[Account]:
        keys = "\n".join(f"  - {{name: {name}, key: sk-{name}}}" for name in names)
        return as_accounts(read_key_file(written(tmp_path, f"keys:\n{keys}\n")), before)

    before: list[Account] = []
    before = accounts("a", "b", "c")
    before = accounts("c", "d")
    assert [(one.entry, one.name, bool(one.digest)) for one in before] == [
        *((0, "a", False), (1, "b", False), (2, "c", True), (3, "d", True))
    ]
    before = accounts("b")
    assert [(one.entry, one.name) for one in before if one.digest] == [(1, "b")]


def test_there_are_only_so_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorserve.actors.accounts.key_file.MOST_ACCOUNTS", 2)
    keys = read_key_file(written(tmp_path, "keys: [{name: a, key: a}, {name: b, key: b}]"))
    before = as_accounts(keys, [])
    with pytest.raises(KeyFileError, match="more than 2 names"):
        as_accounts(read_key_file(written(tmp_path, "keys: [{name: c, key: c}]")), before)
