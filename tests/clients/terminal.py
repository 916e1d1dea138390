"""A terminal with somebody at it, for programs that want one."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading

from agents import TAIL, die_with_parent, end_group
from servers import wait_until

ROWS, COLUMNS = 50, 160
SEEN_WITHIN_S = 30
ENDED_WITHIN_S = 20

# Control sequences with their parameters, other escapes, and operating system commands such as a window's title.
ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\^_78=>]")
BLANKS = re.compile(rb"\s+")


class Terminal:
    """Runs a program on a terminal of its own. What it shows is kept whole, without blanks: a program may move the cursor
    over a blank as well as print one."""

    def __init__(self, command, folder, env):
        self.command, self.folder, self.env = command, folder, env
        self.shown, self.begun = b"", 0

    def __enter__(self):
        self.side, program_side = pty.openpty()
        fcntl.ioctl(program_side, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        try:
            self.process = subprocess.Popen(
                self.command, cwd=self.folder, env=self.env, start_new_session=True,
                stdin=program_side, stdout=program_side, stderr=program_side,
                preexec_fn=_take_the_terminal,
            )  # fmt: skip
        finally:
            os.close(program_side)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        return self

    def __exit__(self, *_):
        end_group(self.process)
        self.reader.join()
        os.close(self.side)

    def await_text(self, text):
        """Waits until `text` has been shown since the last line was begun."""
        wanted = BLANKS.sub(b"", text.encode())
        self._wait(f"{text!r} is shown", SEEN_WITHIN_S, lambda: wanted in self._visible())

    def enter(self, line):
        """Types a line, and confirms it once the program shows it: both at once would be a paste."""
        self.begun = len(self.shown)
        os.write(self.side, line.encode())
        self.await_text(line)
        os.write(self.side, b"\r")

    def wait(self):
        """The exit status."""
        self._wait("the program ends", ENDED_WITHIN_S, lambda: self.process.poll() is not None)
        return self.process.returncode

    def _wait(self, what, seconds, condition):
        try:
            wait_until(what, seconds, condition)
        except AssertionError as error:
            raise AssertionError(f"{error}; it showed {self._visible()[-TAIL:].decode(errors='replace')}") from None

    def _visible(self):
        return BLANKS.sub(b"", ESCAPES.sub(b"", self.shown[self.begun :]))

    def _read(self):
        # The read fails when the program's side has been closed by its end.
        with contextlib.suppress(OSError):
            while part := os.read(self.side, 65536):
                self.shown += part


def _take_the_terminal():
    die_with_parent()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
