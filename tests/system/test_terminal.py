"""Consoles: terminals, and pipes whose reader has ended."""

import io
import os
import sys

from rlds2reverb.system.terminal import is_terminal, make_console, outlive_readers


def test_output_is_ignored_once_its_reader_has_ended(monkeypatch):
    reader, writer = os.pipe()
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        outlive_readers()
        print("read", flush=True)
        assert os.read(reader, 99) == b"read\n" and sys.stderr is errors
        os.close(reader)
        print("not read", flush=True)


def test_cells_of_notebooks_are_no_terminals(monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Screen())
    for is_cell in (False, True):
        monkeypatch.setenv("JPY_PARENT_PID", "1") if is_cell else monkeypatch.delenv("JPY_PARENT_PID", raising=False)
        assert is_terminal(sys.stderr) == make_console().is_terminal == (not is_cell)
    assert not is_terminal(io.StringIO())
