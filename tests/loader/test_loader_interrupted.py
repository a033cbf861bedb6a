"""Code of the loader that something else interrupts: a tracer, another thread, the exit of the interpreter."""

import subprocess
import sys
from types import FrameType
from typing import Any

import numpy as np

from rlds_cli.loader import slabs


def test_memory_of_batches_has_the_sizes_that_were_asked_for() -> None:
    """Between any two lines of a call another one asks for other sizes, as a thread does."""
    memory = slabs.Slabs([(np.dtype("f8"), (3,)), (np.dtype("i8"), ())])
    interrupted = 0

    def interrupt(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal interrupted
        if frame.f_code is not slabs.Slabs.take.__code__:
            return None
        if event == "line":
            interrupted += 1
            sys.settrace(None)
            memory.take((7,), 1)
            sys.settrace(interrupt)
        return interrupt

    before = sys.gettrace()
    for count in (256, 100, 256):
        sys.settrace(interrupt)
        batches, addresses = memory.take((count,), 2)
        sys.settrace(before)
        arrays = [x for batch in batches for x in batch]
        assert [len(x) for x in arrays] == [count] * 4
        assert [x.ctypes.data for x in arrays] == list(addresses)
    assert interrupted > 3


def test_a_gather_may_end_at_the_exit_of_the_interpreter() -> None:
    """Iterators that are alive at the exit are closed after the names of modules were set to None."""
    code = """
from rlds_cli.loader.storage import page_cache

def batches():
    with page_cache.ReadAhead().gather():
        yield 1

iterator = batches()
next(iterator)
for name in [n for n in vars(page_cache) if not n.startswith("__")]:
    setattr(page_cache, name, None)
iterator.close()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
