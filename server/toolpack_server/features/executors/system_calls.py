"""seccomp(2) filter with the system calls that an executor can't make.

A filter sees the number and the arguments of a system call, but not the memory that the arguments point to. If a
decision would depend on this memory, the call is always refused. In Python, a refused call raises `PermissionError`.
"""

import errno
import platform
import socket
import struct
from collections.abc import Iterable, Sequence

# The supported architectures, with their ids in a filter. Below, the number of each system call on these architectures;
# None if the call doesn't exist there.
PROCESSORS = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBERS: dict[str, tuple[int, int | None]] = {
    # Sockets.
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    # Objects that outlive a process: shared memory, semaphores, message queues, keyrings.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Namespaces, which give a user the rights of root.
    "unshare": (272, 97),
    "setns": (308, 268),
    "clone": (56, 220),
    "clone3": (435, 435),
    # Calls that can replace other calls, or inspect other processes.
    "io_uring_setup": (425, 425),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "syslog": (103, 116),
    # Limits and priorities, also of other processes.
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    # File metadata, which Landlock doesn't protect.
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "ioctl": (16, 29),
}

_X32 = 0x40000000  # on x86_64, a second set of system calls starts at this number

_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_REFUSE, _REFUSE_AS_UNKNOWN = 0x00050000 | errno.EACCES, 0x00050000 | errno.ENOSYS
# Instructions of a filter. A comparison has two jump offsets: the number of instructions to skip if it is true, and if
# it is false.
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _AT_LEAST, _HAS_ANY = 0x15, 0x35, 0x45
INSTRUCTION_BYTES = 8
_NUMBER_AT, _PROCESSOR_AT, _ARGUMENTS_AT = 0, 4, 16  # offsets in struct seccomp_data

_TYPE_OF_SOCKET = 0xF  # mask of a socket's type; the other bits are flags
_NEW_NAMESPACES = 0x7E020000  # flags of clone(2)
# ioctl requests that Python makes for any file: terminal attributes and size, close-on-exec, non-blocking mode, and the
# number of readable bytes.
_USUAL_REQUESTS = (0x5401, 0x802C542A, 0x5413, 0x5450, 0x5451, 0x5421, 0x541B)


def number(name: str) -> int | None:
    """Return the number of a system call on this architecture, or None if it doesn't exist."""
    return _NUMBERS[name][[*PROCESSORS].index(platform.machine())]


def filter_of(kinds: Iterable[str]) -> bytes:
    """Return the filter for a sandbox that blocks these kinds of resources.

    It kills programs of other architectures.
    """
    rules = [*_ALWAYS]
    if "files" in kinds:
        rules += _FILES
    if "network" in kinds:
        rules += _NETWORK
    start = [
        _instruction(_LOAD, _PROCESSOR_AT),
        _instruction(_EQUAL, PROCESSORS[platform.machine()], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER_AT),
        _instruction(_AT_LEAST, _X32, 0, 1),
        _instruction(_RETURN, _REFUSE),
    ]
    return b"".join([*start, *map(_when_called, rules), _instruction(_RETURN, _ALLOW)])


Rule = tuple[str, Sequence[bytes]]
"""The name of a system call, and the instructions that allow or refuse it."""


def _when_called(rule: Rule) -> bytes:
    """Return the instructions of a rule, which are skipped for every other system call."""
    name, instructions = rule
    call = number(name)
    return b"" if call is None else b"".join([_instruction(_EQUAL, call, 0, len(instructions)), *instructions])


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _refuse(*names: str) -> list[Rule]:
    return [(name, [_instruction(_RETURN, _REFUSE)]) for name in names]


def _refuse_unless(name: str, *conditions: Sequence[bytes]) -> Rule:
    """Return the rule that allows a call if all conditions hold. Each condition refuses the call if it doesn't hold."""
    return name, [
        *(instruction for condition in conditions for instruction in condition),
        _instruction(_RETURN, _ALLOW),
    ]


def _is_one_of(argument: int, values: Sequence[int], mask: int = 0xFFFFFFFF) -> list[bytes]:
    """Return instructions that refuse the call unless an argument has one of these values."""
    load = [_instruction(_LOAD, _ARGUMENTS_AT + 8 * argument), _instruction(_AND, mask)]
    # If a value is equal, jump over the comparisons with the other values and over the refusal.
    compare = [_instruction(_EQUAL, value, len(values) - index) for index, value in enumerate(values)]
    return [*load, *compare, _instruction(_RETURN, _REFUSE)]


def _refuse_bits(name: str, argument: int, bits: int) -> Rule:
    """Return the rule that refuses a call if any of these bits is set in an argument."""
    test = [_instruction(_LOAD, _ARGUMENTS_AT + 8 * argument), _instruction(_HAS_ANY, bits, 0, 1)]
    return name, [*test, _instruction(_RETURN, _REFUSE), _instruction(_RETURN, _ALLOW)]


_ALWAYS = [
    *_refuse("shmget", "shmat", "shmctl", "semget", "semop", "semtimedop", "semctl"),
    *_refuse("msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink"),
    *_refuse("add_key", "request_key", "keyctl"),
    *_refuse("unshare", "setns"),
    _refuse_bits("clone", 0, _NEW_NAMESPACES),
    # A filter can't see the flags of clone3, because they are in memory. If clone3 is reported as unknown, libraries
    # use `clone` instead.
    ("clone3", [_instruction(_RETURN, _REFUSE_AS_UNKNOWN)]),
    *_refuse("io_uring_setup", "perf_event_open", "bpf", "syslog"),
]
_FILES = [
    *(
        _refuse_unless(name, _is_one_of(0, [0]))
        for name in ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")
    ),
    _refuse_unless("setpriority", _is_one_of(0, [0]), _is_one_of(1, [0])),
    _refuse_unless("ioprio_set", _is_one_of(0, [1]), _is_one_of(1, [0])),
    *_refuse("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"),
    *_refuse("utime", "utimes", "futimesat", "utimensat", "file_setattr"),
    *_refuse("setxattr", "lsetxattr", "fsetxattr", "setxattrat"),
    *_refuse("removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
    _refuse_unless("ioctl", _is_one_of(1, _USUAL_REQUESTS)),
]
# Only sockets that must be connected before they can send are allowed, and `connect` is refused.
_LOCAL = [
    *_is_one_of(0, [socket.AF_UNIX]),
    *_is_one_of(1, [socket.SOCK_STREAM, socket.SOCK_SEQPACKET], _TYPE_OF_SOCKET),
]
_NETWORK = [_refuse_unless("socket", _LOCAL), _refuse_unless("socketpair", _LOCAL), *_refuse("connect", "bind")]
