"""The units of a server that systemd runs: a service, and a socket that outlives it. Text only; nothing is installed.

The service is started again for as long as it fails, but for options that cannot be (status 2): nobody may be there to
say `systemctl reset-failed` once the network is. It may read what it needs, and write to its own cache and to folders
that options have the server write in. What lies in a home, or in /tmp, which it does not see, is bound there.
MemoryDenyWriteExecute is not set: torch makes machine code as it runs (oneDNN, Triton).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isinf
from pathlib import Path

import msgspec

from ...options.config import Config
from ...supervisor.listeners import BACKLOG
from ...supervisor.timeouts import stop_seconds
from .quoting import argument, line, path

HIDDEN = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))
START_S = 120  # without a sign from the supervisor, which asks for more as long as it sees its actors come up
WATCHDOG_S = 30
AGAIN_S = 5  # the hub, a network or memory may be had later, however long that takes: it is tried again for ever
MARGIN_S = 5  # beyond what the server takes itself to stop
DESCRIPTORS = 1 << 16

HARDENING = """\
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
UMask=0077
ProtectSystem=strict
ProtectHome=tmpfs
PrivateTmp=yes
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RemoveIPC=yes
LockPersonality=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM
"""
NO_DEVICES = "PrivateDevices=yes\nDevicePolicy=closed\n"
GPU_DEVICES = "DevicePolicy=closed\n" + "".join(
    f"DeviceAllow=char-{group} rw\n" for group in ("nvidia", "nvidia-frontend", "nvidia-uvm", "nvidia-caps")
)


class UnitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the units are made of."""

    name: str
    command: Sequence[str]
    config: Config
    needs: Sequence[Path]  # that the command line names, or the interpreter lies in
    writes: Sequence[Path]  # folders that the server makes files in
    environment_file: Path
    user: str | None = None  # a fresh one for each start, if None
    runtime: Sequence[str] = ()  # folders below /run that are made at each start, and removed behind it
    addresses: Sequence[str] = ()  # that a socket unit listens on; none: there is no such unit


def service_unit(plan: UnitOptions) -> str:
    """NAME.service."""
    seconds = stop_seconds(plan.config.shutdown_timeout)
    stop_s = "infinity" if isinf(seconds) else ceil(seconds) + MARGIN_S
    socket = f"Requires={plan.name}.socket\nAfter={plan.name}.socket\n" if plan.addresses else ""
    return f"""\
[Unit]
Description={line(plan.config.served_names()[0])} (actorserve)
Wants=network-online.target
After=network-online.target nvidia-persistenced.service
{socket}StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={" ".join(map(argument, plan.command))}
EnvironmentFile=-{line(str(plan.environment_file))}
Restart=on-failure
RestartSec={AGAIN_S}
RestartPreventExitStatus=2
TimeoutStartSec={START_S}
TimeoutStopSec={stop_s}
WatchdogSec={WATCHDOG_S}
KillMode=mixed
OOMPolicy=continue
LimitNOFILE={DESCRIPTORS}
{_user(plan)}{_runtime(plan)}CacheDirectory={plan.name}
CacheDirectoryMode=0700
Environment=HOME=%C/{plan.name}
WorkingDirectory=%C/{plan.name}

{HARDENING}{NO_DEVICES if plan.config.device == "cpu" else GPU_DEVICES}{_binds(plan)}
[Install]
WantedBy=multi-user.target
"""


def socket_unit(plan: UnitOptions) -> str:
    """NAME.socket."""
    streams = "".join(f"ListenStream={address}\n" for address in plan.addresses)
    own = "ipv6-only" if len(plan.addresses) > 1 else "both"
    return f"""\
[Unit]
Description=The port of {plan.name}.service

[Socket]
{streams}BindIPv6Only={own}
Backlog={BACKLOG}
FileDescriptorName=http

[Install]
WantedBy=sockets.target
"""


def _user(plan: UnitOptions) -> str:
    return f"User={plan.user}\n" if plan.user is not None else "DynamicUser=yes\n"


def _runtime(plan: UnitOptions) -> str:
    return "".join(f"RuntimeDirectory={path(name)}\n" for name in sorted({*plan.runtime}))


def _binds(plan: UnitOptions) -> str:
    """What the service would not see otherwise, or could not write, each folder once."""
    writes = _tops(plan.writes)
    needs = _tops([need for need in plan.needs if _is_hidden(need) and not any(map(need.is_relative_to, writes))])
    written = (f"{'BindPaths' if _is_hidden(one) else 'ReadWritePaths'}={path(str(one))}\n" for one in writes)
    return "".join((*(f"BindReadOnlyPaths={path(str(one))}\n" for one in needs), *written))


def _is_hidden(place: Path) -> bool:
    return any(place.is_relative_to(home) for home in HIDDEN)


def _tops(places: Sequence[Path]) -> list[Path]:
    """Those that lie in no other one."""
    return [one for one in sorted({*places}) if not any(one != other and one.is_relative_to(other) for other in places)]
