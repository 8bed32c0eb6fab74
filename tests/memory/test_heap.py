"""What a process holds, as the engine counts it."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest

from tandem.memory.heap import anonymous_bytes, locked_bytes

SIZE = 4 << 20


def test_locked_pages_of_a_file_are_held_and_not_anonymous(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * SIZE)
    anonymous, locked = anonymous_bytes(), locked_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_COPY) as pages:
        view = ctypes.c_char.from_buffer(pages)
        where = ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(SIZE)
        libc = ctypes.CDLL(None)
        if libc.mprotect(*where, mmap.PROT_READ) or libc.mlock(*where):
            pytest.skip("this user may not lock 4 MiB")
        assert locked_bytes() - locked == SIZE
        assert anonymous_bytes() - anonymous < SIZE // 4
        del view
    assert locked_bytes() == locked
