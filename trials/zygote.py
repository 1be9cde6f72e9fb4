"""A process with the heavy imports done: every trial is forked from it, and all that a trial
leaves behind becomes its child, so that nothing escapes.

Reads one JSON request a line on stdin: {"folder", "environ", "cwd", "fresh"}; answers {"pid"} at
once and {"pid", "exit"} when the child has ended (negative: the signal). When stdin closes, its
owner is gone: it ends whatever is below it, then itself.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import selectors
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.process_tree import end_below
from trials.lifeline import adopt_orphans, die_with, live_on

_FIRST_VICTIM = "800"  # of the kernel, when the host runs out of memory: a trial, never the driver


def main() -> None:
    """Split in two, so that neither can be killed without the other cleaning up after it."""
    adopt_orphans()
    keeper = os.getpid()
    zygote = os.fork()
    if zygote:
        _keep(zygote)
    _prepare(keeper)
    try:
        _serve()
    finally:
        end_below(os.getpid())


def _keep(zygote: int) -> None:
    """The parent: ends, in the same way, when the zygote has, and what that left behind first."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(null, stream)
    _, status = os.waitpid(zygote, 0)
    end_below(os.getpid())
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def _prepare(keeper: int) -> None:
    die_with(keeper)  # for as long as imports keep it from looking at stdin
    for name in ("trials.run", *sys.argv[1:]):
        with contextlib.suppress(Exception):  # an optional library, or one that is broken here
            importlib.import_module(name)
    adopt_orphans()
    live_on()


def _serve() -> None:
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting = selectors.DefaultSelector()
    waiting.register(sys.stdin.fileno(), selectors.EVENT_READ, "request")
    waiting.register(wake_read, selectors.EVENT_READ, "child")
    _say({"ready": os.getpid()})
    pending = b""
    while True:
        for key, _ in waiting.select():
            if key.data == "child":
                os.read(wake_read, 4096)
                _reap()
                continue
            data = os.read(sys.stdin.fileno(), 1 << 16)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                _fork(json.loads(line), (wake_read, wake_write))


def _say(message: dict[str, int]) -> None:
    """To the owner; when it is gone, stdin says so too."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _say({"pid": pid, "exit": os.waitstatus_to_exitcode(status)})


def _fork(request: Mapping[str, Any], pipes: tuple[int, int]) -> None:
    zygote = os.getpid()
    pid = os.fork()
    if pid:
        _say({"pid": pid})
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for pipe in pipes:
            os.close(pipe)
        code = _become_trial(request, zygote)
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        _flush()
        os._exit(code & 0xFF)


def _become_trial(request: Mapping[str, Any], zygote: int) -> int:
    os.setsid()
    die_with(zygote)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core with torch in it takes gigabytes
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_VICTIM)
    folder = Path(request["folder"])
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)
    with contextlib.suppress(OSError):  # of another host, maybe
        os.chdir(request["cwd"])
    if request["fresh"]:
        program = [sys.executable, "-m", "trials", str(folder)]
        os.execve(sys.executable, program, request["environ"])
    os.environ.clear()
    os.environ.update(request["environ"])
    from trials.run import main as run

    return run(folder)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


if __name__ == "__main__":
    main()
