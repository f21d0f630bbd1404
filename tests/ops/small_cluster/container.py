"""Becomes the program of a container: `python3 container.py SPEC`, a JSON file.

It enters the pod's network, gets a root of its own that cannot be written (the machine's /usr or
the files of an image, a small /etc, and the volumes), gives up root, and starts the program in
place of itself. It does so without a supervisor: signals reach the program itself, as PID 1 of a
container gets them.
"""

import ctypes
import json
import os
import pathlib
import signal
import sys

CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
FROM_THE_MACHINE = ["bin", "sbin", "lib", "lib32", "lib64", "usr"]
FROM_THE_KERNEL = ["proc", "dev", "sys"]
ETC = ["nsswitch.conf", "ld.so.cache", "localtime", "ssl/openssl.cnf"]
_libc = ctypes.CDLL(None, use_errno=True)


def check(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source, target, kind="", flags=0):
    check(
        _libc.mount(str(source).encode(), str(target).encode(), kind.encode(), flags, None),
        f"mount {source} at {target}",
    )


def bind(source, target, read_only):
    if os.path.isdir(source):
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        mount("", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def make_root(spec):
    """The container's file system, mounted at spec["root"]."""
    root = pathlib.Path(spec["root"])
    mount("", "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs")
    source = pathlib.Path(spec["image"] or "/")
    names = FROM_THE_MACHINE if spec["image"] is None else os.listdir(source)
    for name in set(names) - {"etc", *FROM_THE_KERNEL}:
        path = source / name
        if path.is_symlink():
            (root / name).symlink_to(os.readlink(path))
        elif path.exists():
            bind(path, root / name, True)
    for name in FROM_THE_KERNEL:
        bind(f"/{name}", root / name, False)
    for name in ETC:
        path = source / "etc" / name
        if path.exists():
            (root / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
            (root / "etc" / name).write_bytes(path.read_bytes())
    (root / "etc").mkdir(exist_ok=True)
    for name, text in spec["etc"].items():
        (root / "etc" / name).write_text(text, encoding="ascii")
    if spec["image"] is None:
        bind(spec["programs"], root / "usr/local/bin", True)
    for path, folder in spec["files"].items():
        bind(folder, root / path.lstrip("/"), True)
    for volume in sorted(spec["mounts"], key=lambda m: m["path"]):
        bind(volume["source"], root / volume["path"].lstrip("/"), volume["read_only"])
    mount("", root, flags=MS_REMOUNT | MS_RDONLY)
    os.chroot(root)
    os.chdir("/")


def main(path):
    spec = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    if spec["group"]:
        pathlib.Path(spec["group"]).write_text(str(os.getpid()), encoding="ascii")
    check(_libc.setns(spec["network"], CLONE_NEWNET), "setns")
    os.close(spec["network"])
    check(_libc.unshare(CLONE_NEWNS), "unshare of the mounts")
    make_root(spec)
    os.setgroups(spec["groups"])
    os.setresgid(spec["gid"], spec["gid"], spec["gid"])
    os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    # After the change of user, which clears it: a test that is killed leaves no programs behind.
    check(_libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "signal of the parent's death")
    os.umask(0o027)
    os.execvpe(spec["command"][0], spec["command"], spec["env"])


if __name__ == "__main__":
    main(sys.argv[1])
