"""A process with the heavy imports done, from which each trial is forked.

Reads one JSON request a line on stdin: {"folder", "environ"}; answers {"pid"} at once and
{"pid", "exit"} when the child has ended (negative: the signal).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import sys
from pathlib import Path

from trials.lifeline import die_with


def main() -> None:
    """Serve requests until stdin closes."""
    die_with(os.getppid())
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):  # an optional library
            importlib.import_module(name)
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
            pending += data
            *lines, pending = pending.split(b"\n")
            for line in lines:
                _fork(json.loads(line))


def _say(message: dict[str, int]) -> None:
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


def _fork(request: dict[str, object]) -> None:
    zygote = os.getpid()
    pid = os.fork()
    if pid:
        _say({"pid": pid})
        return
    code = 1
    try:
        os.setsid()
        die_with(zygote)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        folder = Path(str(request["folder"]))
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        environ = request["environ"]
        assert isinstance(environ, dict)
        os.environ.clear()
        os.environ.update(environ)
        from trials.run import main as run

        code = run(folder)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
