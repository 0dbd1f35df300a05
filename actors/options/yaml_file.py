"""A YAML file of options: what is wrong with it is told in one line, and also if a name is there twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def load_yaml(path: Path) -> Any:
    """What is in it; ValueError says in one line why it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
        _check_names(yaml.compose(text, Loader=yaml.SafeLoader))
        return yaml.safe_load(text)
    except OSError as error:
        raise ValueError(error.strerror) from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f" (line {error.problem_mark.line + 1})"
        raise ValueError(f"{error.problem}{where}") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _check_names(node: Any) -> None:
    """PyYAML takes the last of two options with one name, and says nothing."""
    seen = set()
    for name, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if isinstance(name, yaml.ScalarNode) and name.value in seen:
            raise ValueError(f"{name.value} is there twice (line {name.start_mark.line + 1})")
        if isinstance(name, yaml.ScalarNode) and name.value != "<<":
            seen.add(name.value)
