"""Sandbox of an executor, built with Landlock and seccomp, which need no privileges.

With Landlock (landlock(7)), a process permanently gives up access to files outside a list. It also gives up sending
signals to processes outside its *domain*, the processes that share its rules. Each executor has its own domain, so it
can't send signals to the server or to other executors. `system_calls` blocks further system calls with seccomp.
"""

import ctypes
import os
import platform
import struct
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from toolpack_server.base.errors import SettingsError
from toolpack_server.features.executors import system, system_calls

SIGNALS_VERSION = 6  # the first version of Landlock that can block signals; Linux 6.12

# landlock_create_ruleset(2), landlock_add_rule(2), landlock_restrict_self(2): the same numbers on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_ALL_FILE_RIGHTS = (1 << 16) - 1
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2  # scopes that can be blocked in addition to files

_SYSTEM_FILES = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"),
    *("/usr/share/zoneinfo", "/etc/localtime", "/etc/timezone"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates"),
    *("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/services", "/etc/protocols", "/etc/mime.types"),
    *("/dev/zero", "/dev/random", "/dev/urandom", "/sys/devices/system/cpu/online"),
)
# DuckDB reads its control group's limits when it connects, and aborts the process if it can't read them.
_OWN_GROUP = Path("/proc/self/cgroup")
_LIMITS = ("cpu.max", "memory.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us", "memory/memory.limit_in_bytes")

_PR_SET_SECCOMP, _FILTER = 22, 2


def check_sandbox() -> None:
    """Raise a `SettingsError` if this system doesn't support the sandbox."""
    version = system.LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    if version < SIGNALS_VERSION:
        offer = f"version {version}" if version > 0 else "none"
        raise SettingsError(
            f"TOOLPACK_EXECUTORS_SANDBOX needs Linux 6.12 or newer with Landlock version {SIGNALS_VERSION}; this "
            f"system offers {offer}: omit the setting, or use another kernel."
        )
    supported = system_calls.PROCESSORS
    if platform.machine() not in supported:
        raise SettingsError(
            f"TOOLPACK_EXECUTORS_SANDBOX supports {' and '.join(supported)}, but not {platform.machine()}: "
            "omit the setting."
        )


class Sandbox:
    """The sandbox of a worker's executors. The zygote creates it once, and each executor enters it.

    Args:
        kinds: Resources to block: `files`, `network` or both.
        folders: Folders that an executor can read, including their content.
        hidden: Files and folders that an executor must not read, even within `folders`.
    """

    def __init__(self, kinds: Sequence[str], folders: Iterable[str], hidden: Iterable[str]) -> None:
        self._filter = system_calls.filter_of(kinds) if kinds else b""
        self._confines_files = "files" in kinds
        self._allowed: list[tuple[int, int]] = []  # file descriptors and the rights on them
        if self._confines_files:
            self._allow_files(folders, [Path(path).resolve() for path in hidden])

    def enter(self, own: Path) -> None:
        """Enter the sandbox, permanently, and give up all privileges.

        Args:
            own: The executor's own folder, in which it is allowed to do everything except start programs.
        """
        if not self._filter:
            return
        system.give_up_new_privileges()
        system.give_up_capabilities()
        if self._confines_files:
            self._allow(own, _ALL_FILE_RIGHTS & ~_EXECUTE)
            for path in _own_limits():
                self._allow(path, _READ_FILE)
            ruleset = _create_ruleset()
            for descriptor, rights in self._allowed:
                _call(_ADD_RULE, ruleset, ctypes.c_uint32(_PATH_BENEATH), struct.pack("=Qi", rights, descriptor), 0)
                os.close(descriptor)
            # Keep this file open, because its rule is bound to its inode, and a file in /proc can get another inode
            # while it isn't open.
            os.open(_OWN_GROUP, os.O_PATH | os.O_CLOEXEC)
            _call(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0))
            os.close(ruleset)
        text = ctypes.create_string_buffer(self._filter, len(self._filter))
        program = struct.pack("HxxxxxxP", len(self._filter) // system_calls.INSTRUCTION_BYTES, ctypes.addressof(text))
        if system.LIBC.prctl(_PR_SET_SECCOMP, _FILTER, program, 0, 0):
            system.raise_errno()

    def _allow_files(self, folders: Iterable[str], hidden: Sequence[Path]) -> None:
        """Allow reading the system's files, Python's modules and the toolpacks, and starting Python."""
        python = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        python += [sys.prefix, sys.executable, os.path.realpath(sys.executable)]
        # Exclude the working folder: it is in `sys.path` only because of `python -m`, and can have any content.
        python += [path for path in sys.path if Path(path) != Path.cwd()]
        python += [folder for name in ("toolpack_server", "toolpacks") for folder in sys.modules[name].__path__]
        for path in dict.fromkeys(Path(path).resolve() for path in [*_SYSTEM_FILES, *python, *folders] if path):
            for allowed, rights in _readable(path, hidden):
                self._allow(allowed, rights)
        for path, rights in _to_start_python():
            self._allow(path, rights)
        self._allow(Path(os.devnull), _READ_FILE | _WRITE_FILE)

    def _allow(self, path: Path, rights: int) -> None:
        """Allow access to a file or a folder with its content. Ignore a path that doesn't exist."""
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # the file doesn't exist
            return
        if not path.is_dir():
            rights &= ~_READ_DIR
        self._allowed.append((descriptor, rights))


def _readable(path: Path, hidden: Sequence[Path]) -> Iterator[tuple[Path, int]]:
    """Yield the paths and rights that make a folder readable, except for its hidden files. Their names stay visible."""
    if any(path.is_relative_to(secret) for secret in hidden):
        if path not in hidden:
            yield path, _READ_FILE | _READ_DIR  # for example a folder of toolpacks within the data directory
    elif any(secret.is_relative_to(path) for secret in hidden):
        yield path, _READ_DIR
        for inner in path.iterdir():
            # SQLite creates further files beside a database. Their names begin with the database's name.
            if not (inner.is_symlink() or str(inner).startswith(tuple(map(str, hidden)))):
                yield from _readable(inner, hidden)
    else:
        yield path, _READ_FILE | _READ_DIR


def _to_start_python() -> Iterator[tuple[Path, int]]:
    """Yield the paths and rights to start Python: the interpreter, the dynamic loader and the libraries.

    The loader and the libraries are among the files that this process has mapped into memory.
    """
    yield Path(sys.executable).resolve(), _READ_FILE | _EXECUTE
    for name in {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()}:
        path = Path(name)
        if path.name.startswith("ld-"):
            yield path, _READ_FILE | _EXECUTE
        elif ".so" in path.name:
            yield path, _READ_FILE


def _own_limits() -> Iterator[Path]:
    """Yield the files with this process's control group and the group's CPU and memory limits."""
    yield _OWN_GROUP
    root = Path("/sys/fs/cgroup")
    for line in _OWN_GROUP.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        for name in _LIMITS:
            controller, _, limit = name.rpartition("/")
            if controller in controllers.split(","):
                yield from (root / controller / folder / limit for folder in ("", group.strip("/")))


def _create_ruleset() -> int:
    """Create a Landlock ruleset and return its descriptor. It forbids all access to files that no rule allows."""
    handled = struct.pack("QQQ", _ALL_FILE_RIGHTS, 0, _ABSTRACT_SOCKETS | _SIGNALS)
    return _call(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), ctypes.c_uint32(0))


def _call(number: int, *arguments: object) -> int:
    """Make a system call for which Python has no function. Return its result, or raise an `OSError`."""
    result: int = system.LIBC.syscall(number, *arguments)
    if result < 0:
        system.raise_errno()
    return result
