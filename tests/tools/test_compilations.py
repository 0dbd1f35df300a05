"""What compilers say of kernels may be asked of a version of Triton that lies in a folder beside the installed one."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.gpu.compilations import INSTALLED, say, version_of


@pytest.fixture
def other(tmp_path: Path) -> str:
    """A folder with another version, as far as its name goes."""
    described = tmp_path / "other" / "triton-0.0.7.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: triton\nVersion: 0.0.7\n")
    return str(described.parent)


def test_each_version_says_what_it_says(other: str) -> None:
    """Also where the other was asked the same before."""
    for triton, wanted in ((INSTALLED, version("triton")), (other, "0.0.7")):
        assert version_of(triton) == wanted
        assert say(__file__, ["anything"], os.environ, triton) == [wanted, "anything"]


def test_a_folder_without_triton_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=f"OTHER_TRITON: {tmp_path} has no Triton: pip install --target"):
        version_of(str(tmp_path))


if __name__ == "__main__":
    print(json.dumps([version("triton"), sys.argv[1]]))
