"""`actorserve systemd-unit [launch's options]`: a unit that runs this server under systemd."""

from __future__ import annotations

import argparse
import os
import re
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..options.command_line import add_options, read_config
from ..options.config import ConfigError
from ..options.fields import SECRETS, flag
from ..options.other_servers import KEY_VARIABLES
from ..options.sources import SECRET_VARIABLE, variable, warn
from .links import hops
from .places import FILES, HOST, Paths, given_words, is_there

if TYPE_CHECKING:
    from .systemd.units import UnitOptions

DESCRIPTION = """Print a systemd unit that runs `actorserve launch` with these options, or write it into a folder:

    sudo actorserve systemd-unit MODEL --socket --into /etc/systemd/system
    sudo systemctl daemon-reload
    sudo systemctl enable --now actorserve.socket actorserve.service

The service is ready once a token was generated, is restarted when it fails or hangs, drains when it is stopped, and
sees no more of the machine than it needs. With --socket the port survives a restart: clients wait meanwhile.
Keys belong into the environment file (ACTORSERVE_API_KEY=…), which only root need be able to read."""
RUN = Path("/run")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the server and those of the unit."""
    add_options(parser)
    group = parser.add_argument_group("unit")
    group.add_argument("--name", default="actorserve", metavar="NAME", help="of the unit (default: actorserve)")
    group.add_argument("--socket", action="store_true", help="also a socket unit, which keeps the port")
    group.add_argument("--user", metavar="NAME", help="that the service runs as (default: one made at each start)")
    said = "variables, of which none need be there (default: /etc/actorserve/NAME.env)"
    group.add_argument("--environment-file", type=Path, metavar="FILE", help=said)
    group.add_argument("--into", type=Path, metavar="FOLDER", help="write the units there instead of printing them")


def run(arguments: argparse.Namespace) -> int:
    """Print or write."""
    from .systemd.units import service_unit, socket_unit

    plan = _plan(arguments)
    units = {f"{plan.name}.service": service_unit(plan)}
    if plan.addresses:
        units[f"{plan.name}.socket"] = socket_unit(plan)
    for name, text in units.items():
        if arguments.into is None:
            print(f"# {name}\n{text}", end="\n" if name != list(units)[-1] else "")
            continue
        try:
            (arguments.into / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--into: {arguments.into / name} cannot be written: {error.strerror}") from None
        print(arguments.into / name)
    return 0


def _plan(arguments: argparse.Namespace) -> UnitOptions:
    from .systemd.units import UnitOptions

    for option, value in (("--name", arguments.name), ("--user", arguments.user)):
        if value is not None and not NAME.fullmatch(value):
            raise ConfigError(f"{option}: {value} may have letters, digits, and _ . - behind the first")
    for name in SECRETS:
        if hasattr(arguments, name):
            raise ConfigError(
                f"{flag(name)}: everybody can read a unit; put {variable(name)} into its environment file, "
                f"or use --api-key-file"
            )
    for secret in filter(os.environ.get, (*map(variable, SECRETS), SECRET_VARIABLE, *KEY_VARIABLES)):
        warn(f"{secret}: it is not in the unit, which everybody can read: put it into the environment file")
    config = read_config(arguments)
    paths = Paths()
    words = given_words(arguments, paths)
    if arguments.user is None:
        _warn_of_unreadable(paths)
    if config.model and config.model.startswith(("/", "~", ".")) and not is_there(config.model):
        warn(f"model: there is no {config.model}: the service does not start without; make the unit once it is there")
    file = arguments.environment_file or Path("/etc/actorserve") / f"{arguments.name}.env"
    folders, runtime = _written_folders(paths, arguments)
    return UnitOptions(
        name=arguments.name,
        command=[sys.executable, "-P", "-m", "actorserve", "launch", *words],
        config=config,
        needs=[*_interpreter(), *paths.read],
        writes=folders,
        environment_file=file.absolute(),
        user=arguments.user,
        runtime=runtime,
        addresses=_addresses(config.host, config.port) if arguments.socket else (),
    )


def _written_folders(paths: Paths, arguments: argparse.Namespace) -> tuple[list[Path], list[str]]:
    """Those that the service may write in, and the names of those that are made for it in /run, which a boot empties;
    ConfigError where it could not be started with one.
    """
    from .systemd.units import HIDDEN

    folders: list[Path] = []
    runtime: list[str] = []
    for name, path in paths.written:
        folder = path.parent if name in (*FILES, HOST) else path
        if folder.parent.resolve() == RUN and (folder.name == arguments.name or not folder.exists()):
            runtime.append(folder.name)  # one that another service has would be removed with ours
            continue
        if not folder.is_dir():
            raise ConfigError(f"{flag(name)}: there is no folder {folder}, and the service cannot make it")
        if folder in HIDDEN:
            raise ConfigError(f"{flag(name)}: {path}: the service has a {folder} of its own; name a folder in this one")
        if arguments.user is None:
            warn(f"{flag(name)}: the service's user is made at each start, and has to be able to write in {folder}")
        folders.append(folder)
    return folders, runtime


def _warn_of_unreadable(paths: Paths) -> None:
    """A user that is made at each start is neither the owner of files nor of their group."""
    for place in dict.fromkeys(paths.read):
        needed = stat.S_IROTH | (stat.S_IXOTH if place.is_dir() else 0)
        if place.stat().st_mode & needed != needed:
            warn(f"{place}: only its owner may read it, or a group, but not the service's user; --user names another")


def _interpreter() -> list[Path]:
    """Where Python lies, and on the way of links to it, and this package, also when it is installed as links."""
    import actorserve

    package = Path(next(iter(actorserve.__path__)))
    places = {package.parent, *(entry.resolve().parent for entry in package.iterdir() if entry.is_dir())}
    base = Path(sys.executable).resolve().parent.parent
    on_the_way = (*hops(Path(sys.prefix)), *hops(Path(sys.executable)))
    return [Path(sys.prefix), Path(sys.base_prefix), base, *on_the_way, *places]


def _addresses(host: str, port: int) -> list[str]:
    """Each address of the host with the port: a socket unit knows no names."""
    from ..supervisor.listeners import addresses_of, host_and_port

    if port == 0:
        raise ConfigError("--port: a socket unit must be told which")
    return [host_and_port(address, port) for _, address in addresses_of(host, port)]
