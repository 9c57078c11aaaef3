"""What an executor can't reach, by Landlock and seccomp, which need no rights.

Landlock (landlock(7)) lets a process give up access to files permanently, and signals to processes outside;
`system_calls` holds back the rest. What isn't allowed is refused. Each executor is alone in its domain, so it
reaches other executors no more than the server.
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

SIGNALS_VERSION = 6  # of Landlock: the first that can hold signals back; Linux 6.12

# landlock_create_ruleset(2), landlock_add_rule(2), landlock_restrict_self(2): the same numbers on all processors.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_ALL_FILE_RIGHTS = (1 << 16) - 1
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2  # what can be held back beside files

_SYSTEM_FILES = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"),
    *("/usr/share/zoneinfo", "/etc/localtime", "/etc/timezone"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates"),
    *("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/services", "/etc/protocols", "/etc/mime.types"),
    *("/dev/zero", "/dev/random", "/dev/urandom", "/sys/devices/system/cpu/online"),
)
# DuckDB reads the limits of its control group when it connects, and ends the process if it can't.
_OWN_GROUP = Path("/proc/self/cgroup")
_LIMITS = ("cpu.max", "memory.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us", "memory/memory.limit_in_bytes")

_PR_SET_SECCOMP, _FILTER = 22, 2


def check_sandbox() -> None:
    version = system.LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    if version < SIGNALS_VERSION:
        found = f"version {version}" if version > 0 else "none"
        raise SettingsError(
            f"TOOLPACK_EXECUTORS_SANDBOX needs Linux 6.12 or newer with Landlock version {SIGNALS_VERSION}; this "
            f"system offers {found}: omit the setting, or use another kernel."
        )
    known = system_calls.PROCESSORS
    if platform.machine() not in known:
        raise SettingsError(
            f"TOOLPACK_EXECUTORS_SANDBOX knows the processors {' and '.join(known)}, but not {platform.machine()}: "
            "omit it."
        )


class Sandbox:
    """What executors can't reach. Made once, by the zygote, and entered by each executor.

    Args:
        kinds: `files`, `network` or both.
        folders: Folders that may be read, with all that is in them.
        hidden: Files and folders that may not, even if they are in one of those.
    """

    def __init__(self, kinds: Sequence[str], folders: Iterable[str], hidden: Iterable[str]) -> None:
        self._filter = system_calls.filter_of(kinds) if kinds else b""
        self._confines_files = "files" in kinds
        self._allowed: list[tuple[int, int]] = []  # what may be reached, each a file descriptor with its rights
        if self._confines_files:
            self._allow_files(folders, [Path(path).resolve() for path in hidden])

    def enter(self, own: Path) -> None:
        """Give up, permanently, what can't be reached from now on, and all rights beyond those of a plain user.

        Args:
            own: A folder in which everything may be done but to start programs; no other process has it.
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
            for found, rights in self._allowed:
                _call(_ADD_RULE, ruleset, ctypes.c_uint32(_PATH_BENEATH), struct.pack("=Qi", rights, found), 0)
                os.close(found)
            os.open(_OWN_GROUP, os.O_PATH | os.O_CLOEXEC)  # what isn't open may have another inode the next time
            _call(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0))
            os.close(ruleset)
        text = ctypes.create_string_buffer(self._filter, len(self._filter))
        program = struct.pack("HxxxxxxP", len(self._filter) // system_calls.INSTRUCTION_BYTES, ctypes.addressof(text))
        if system.LIBC.prctl(_PR_SET_SECCOMP, _FILTER, program, 0, 0):
            system.raise_errno()

    def _allow_files(self, folders: Iterable[str], hidden: Sequence[Path]) -> None:
        python = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        python += [sys.prefix, sys.executable, os.path.realpath(sys.executable)]
        # The working folder is there only if Python was started with `-m`, and may hold anything.
        python += [path for path in sys.path if Path(path) != Path.cwd()]
        python += [folder for name in ("toolpack_server", "toolpacks") for folder in sys.modules[name].__path__]
        for path in dict.fromkeys(Path(path).resolve() for path in [*_SYSTEM_FILES, *python, *folders] if path):
            for allowed, rights in _readable(path, hidden):
                self._allow(allowed, rights)
        for path, rights in _to_start_python():
            self._allow(path, rights)
        self._allow(Path(os.devnull), _READ_FILE | _WRITE_FILE)

    def _allow(self, path: Path, rights: int) -> None:
        try:
            found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # what isn't there needn't be allowed
            return
        if not path.is_dir():
            rights &= ~_READ_DIR
        self._allowed.append((found, rights))


def _readable(path: Path, hidden: Sequence[Path]) -> Iterator[tuple[Path, int]]:
    """Get what to allow so that all of a folder can be read except what is hidden; of that, only names are seen."""
    if any(path.is_relative_to(secret) for secret in hidden):
        if path not in hidden:
            yield path, _READ_FILE | _READ_DIR  # toolpacks, say, in a folder within the data directory
    elif any(secret.is_relative_to(path) for secret in hidden):
        yield path, _READ_DIR
        for inner in path.iterdir():
            # Beside a file of SQLite's are others, whose names begin with its name.
            if not (inner.is_symlink() or str(inner).startswith(tuple(map(str, hidden)))):
                yield from _readable(inner, hidden)
    else:
        yield path, _READ_FILE | _READ_DIR


def _to_start_python() -> Iterator[tuple[Path, int]]:
    """Get what to allow so that Python can be started: itself, the loader that starts it, and its libraries.

    The loader and the libraries are among the files that this process has in its memory.
    """
    yield Path(sys.executable).resolve(), _READ_FILE | _EXECUTE
    for name in {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()}:
        path = Path(name)
        if path.name.startswith("ld-"):
            yield path, _READ_FILE | _EXECUTE
        elif ".so" in path.name:
            yield path, _READ_FILE


def _own_limits() -> Iterator[Path]:
    """Get the files that say which control group this process is in, and how much of the machine that group may use."""
    yield _OWN_GROUP
    root = Path("/sys/fs/cgroup")
    for line in _OWN_GROUP.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        for name in _LIMITS:
            controller, _, limit = name.rpartition("/")
            if controller in controllers.split(","):
                yield from (root / controller / place / limit for place in ("", group.strip("/")))


def _create_ruleset() -> int:
    handled = struct.pack("QQQ", _ALL_FILE_RIGHTS, 0, _ABSTRACT_SOCKETS | _SIGNALS)
    return _call(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), ctypes.c_uint32(0))


def _call(number: int, *arguments: object) -> int:
    result: int = system.LIBC.syscall(number, *arguments)
    if result < 0:
        system.raise_errno()
    return result
