"""Locks a process in for code that nobody has read: what Linux enforces without root, from the standard library alone.

- Calls that are not in `CALLS` fail with EPERM, for good (seccomp): no network, no other process, no signal to one, no
  program, no mount, no device.
- Writes go to one folder and nowhere else, and what is read lies in that folder or belongs to the interpreter, so that
  no file with the answers is (Landlock, Linux 5.13). Where the kernel has none, seccomp refuses every write to a path,
  those in that folder too, and what the user may read can be read.
- CPU time, address space, the size of a file, open files and threads have hard limits.
- The rights of root are dropped, and none can be had again (no_new_privs).

None of it needs root or a namespace, so it holds in a container as well. It needs Linux on x86-64 or arm64 with
seccomp; elsewhere `confine` raises, and nothing is run. Left out: the names and sizes of files, and side channels. A
bare interpreter loads this file for every program, so it imports little, and nothing of ours.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 1, 22, 38, 2
SIGKILL = 9
CLONE_THREAD = 0x00010000
# Landlock: every right there is to change something under a path, by the version of the interface that has it.
LANDLOCK_WRITES = ((1, 0x1FF2), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15))
READ_FILE, READ_DIR = 1 << 2, 1 << 3
# What Python and its extensions read beside the standard library, which `sys.path` names.
READABLE = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/localtime", "/etc/ld.so.cache",
            "/dev/null", "/dev/zero", "/dev/urandom")  # fmt: skip
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # the same number on both machines
# System calls that Python and its standard library make: name -> (x86-64, arm64), -1 where the machine has none.
CALLS: dict[str, tuple[int, int]] = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "lseek": (8, 62), "close": (3, 57), "open": (2, -1), "openat": (257, 56), "stat": (4, -1),
    "lstat": (6, -1), "fstat": (5, 80), "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43),
    "fstatfs": (138, 44), "access": (21, -1), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, -1),
    "readlinkat": (267, 78), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "getdents": (78, -1),
    "getdents64": (217, 61), "dup": (32, 23), "dup2": (33, -1), "dup3": (292, 24), "fcntl": (72, 25),
    "ioctl": (16, 29), "fsync": (74, 82), "fdatasync": (75, 83), "ftruncate": (77, 46), "flock": (73, 32),
    "fadvise64": (221, 223), "mkdir": (83, -1), "mkdirat": (258, 34), "rmdir": (84, -1), "unlink": (87, -1),
    "unlinkat": (263, 35), "rename": (82, -1), "renameat": (264, 38), "renameat2": (316, 276), "umask": (95, 166),
    "pipe": (22, -1), "pipe2": (293, 59), "poll": (7, -1), "ppoll": (271, 73), "select": (23, -1),
    "pselect6": (270, 72), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, -1),
    "epoll_pwait": (281, 22), "eventfd2": (290, 19), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215),
    "mremap": (25, 216), "madvise": (28, 233), "mincore": (27, 232), "brk": (12, 214), "futex": (202, 98),
    "set_robust_list": (273, 99), "get_robust_list": (274, 100), "rseq": (334, 293), "membarrier": (324, 283),
    "set_tid_address": (218, 96), "gettid": (186, 178), "getpid": (39, 172), "getppid": (110, 173),
    "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getgroups": (115, 158),
    "getpgrp": (111, -1), "getpgid": (121, 155), "getsid": (124, 156), "getrlimit": (97, 163), "getrusage": (98, 165),
    "times": (100, 153), "sysinfo": (99, 179), "uname": (63, 160), "gettimeofday": (96, 169), "time": (201, -1),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "getitimer": (36, 102), "setitimer": (38, 103), "alarm": (37, -1), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137),
    "sigaltstack": (131, 132), "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "getcpu": (309, 168),
    "getrandom": (318, 278), "restart_syscall": (219, 128), "exit": (60, 93), "exit_group": (231, 94),
    "wait4": (61, 260), "waitid": (247, 95), "arch_prctl": (158, -1),
}  # fmt: skip
# Calls that are refused where Landlock cannot tell one path from another.
PATH_WRITES = ("mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2", "ftruncate")
# Calls with an argument that has to be looked at: name -> (numbers, place of the argument, values allowed).
GET_SET_FLAGS = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC: no F_SETOWN
TERMINAL = (0x5401, 0x5413, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONBIO, FIONCLEX, FIOCLEX
CHECKED: dict[str, tuple[tuple[int, int], int, tuple[int, ...]]] = {
    "fcntl": ((72, 25), 1, GET_SET_FLAGS),
    "ioctl": ((16, 29), 1, TERMINAL),
    "prlimit64": ((302, 261), 0, (0,)),  # of this process alone
}
CLONE, CLONE3 = (56, 220), 435
OPENS = (((2, -1), 1), ((257, 56), 2))  # open, openat: (numbers, place of the flags)
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# Classic BPF: (code, jump if true, jump if false, constant).
LOAD, JEQ, JGE, JSET, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, DENY, UNKNOWN, KILL = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38, 0x80000000  # EPERM, ENOSYS
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def _argument(place: int) -> tuple[int, int, int, int]:
    """Load the low half of an argument of the call (both machines are little-endian)."""
    return (LOAD, 0, 0, 16 + 8 * place)


def _values(number: int, place: int, allowed: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """Instructions that end with a verdict for one call and are jumped over by the others."""
    tests = [(JEQ, len(allowed) - i, 0, value) for i, value in enumerate(allowed)]
    body = [_argument(place), *tests, (RETURN, 0, 0, DENY), (RETURN, 0, 0, ALLOW)]
    return [(JEQ, 0, len(body), number), *body]


def _mask(number: int, place: int, mask: int, *, needed: bool) -> list[tuple[int, int, int, int]]:
    """A call whose flags must (or must not) have a bit of the mask."""
    kept, other = (ALLOW, DENY) if needed else (DENY, ALLOW)
    body = [_argument(place), (JSET, 0, 1, mask), (RETURN, 0, 0, kept), (RETURN, 0, 0, other)]
    return [(JEQ, 0, len(body), number), *body]


def program(machine: str, *, paths_guarded: bool) -> bytes:
    """The seccomp filter for a machine; `paths_guarded` says that Landlock decides what may be written."""
    column, architecture = MACHINES[machine]
    code = [(LOAD, 0, 0, 4), (JEQ, 1, 0, architecture), (RETURN, 0, 0, KILL), (LOAD, 0, 0, 0)]
    code += [(JGE, 0, 1, 0x40000000), (RETURN, 0, 0, KILL)]  # the x32 calls have other numbers
    code += _mask(CLONE[column], 0, CLONE_THREAD, needed=True)  # a thread, no process
    code += [(JEQ, 0, 1, CLONE3), (RETURN, 0, 0, UNKNOWN)]  # its flags cannot be seen; the C library then takes clone
    for numbers, place, allowed in CHECKED.values():
        code += _values(numbers[column], place, allowed)
    names = [name for name in CALLS if name not in CHECKED]
    if not paths_guarded:
        names = [name for name in names if name not in (*PATH_WRITES, "open", "openat")]
        for numbers, place in OPENS:
            code += _mask(numbers[column], place, WRITE_FLAGS, needed=False) if numbers[column] >= 0 else []
    for name in names:
        if CALLS[name][column] >= 0:
            code += [(JEQ, 0, 1, CALLS[name][column]), (RETURN, 0, 0, ALLOW)]
    code.append((RETURN, 0, 0, DENY))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _landlock(libc: ctypes.CDLL, folder: str) -> bool:
    """Allow changes under one folder, reads there and in the interpreter's; False where the kernel has no Landlock."""
    version = libc.syscall(LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return False
    rights = READ_FILE | READ_DIR | sum(bits for since, bits in LANDLOCK_WRITES if version >= since)
    attributes = struct.pack("<Q", rights)
    ruleset = libc.syscall(LANDLOCK_CREATE, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    reads = (*sys.path, os.path.join(sys.base_prefix, "lib"), *READABLE)
    allowed = {path: READ_FILE | (READ_DIR if os.path.isdir(path) else 0) for path in reads}
    allowed[folder] = rights & ~(1 << 15)  # no device calls, there either
    for path, some in allowed.items():
        if not os.path.exists(path):
            continue
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if libc.syscall(LANDLOCK_ADD, ruleset, 1, struct.pack("<Qi", some, place), 0):
            raise OSError(ctypes.get_errno(), f"Landlock refuses {path}")
        os.close(place)
    if libc.syscall(LANDLOCK_RESTRICT, ruleset, 0):
        raise OSError(ctypes.get_errno(), "Landlock refuses to start")
    os.close(ruleset)
    return True


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Give up what root may do; without capabilities there is nothing to give up, and the call changes nothing."""
    header = struct.pack("<Ii", 0x20080522, 0)
    if libc.capset(header, struct.pack("<6I", *[0] * 6)) and os.geteuid() == 0:
        raise OSError(ctypes.get_errno(), "the rights of root cannot be dropped")


def die_with_parent() -> None:
    """End this process when the thread that started it ends."""
    _libc().prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)


def limit(limits: dict[str, int]) -> None:
    """Set resource limits by their names (CPU, AS, FSIZE, …), hard ones, so that they cannot be raised again."""
    for name, most in {**limits, "CORE": 0}.items():
        what = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def confine(folder: str, limits: dict[str, int]) -> bool:
    """Lock this process in; return whether writes in `folder` are possible. Raises OSError where it cannot be done."""
    libc = _libc()
    machine = os.uname().machine
    if machine not in MACHINES:
        raise OSError(0, f"no list of system calls for {machine}")
    limit(limits)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "no_new_privs cannot be set")
    guarded = _landlock(libc, folder)
    _drop_capabilities(libc)
    code = ctypes.create_string_buffer(program(machine, paths_guarded=guarded))
    filter_ = _Filter((len(code) - 1) // 8, ctypes.addressof(code))
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp cannot be set")
    return guarded
