import gc
import importlib
import subprocess
import sys
import threading
from importlib.util import find_spec

import pytest

from fedattack.base.imports import importing, importing_beside


def test_nothing_is_collected_while_modules_are_imported():
    assert gc.isenabled()
    with importing():
        assert not gc.isenabled()
        with importing():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_collection_goes_on_after_an_import_that_fails():
    with pytest.raises(ModuleNotFoundError), importing():
        import fedattack.nothing_of_this_name  # noqa: F401
    assert gc.isenabled()


def test_who_collects_nothing_stays_so():
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_only_a_full_collection_looks_at_what_was_imported():
    with importing():
        kept = [[] for _ in range(10_000)]
    assert gc.get_freeze_count() == 0
    young = {id(known) for generation in (0, 1) for known in gc.get_objects(generation)}
    assert not young & set(map(id, kept))
    assert set(map(id, kept)) <= set(map(id, gc.get_objects(2)))


def test_frozen_objects_stay_frozen():
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with importing():
            pass
        assert gc.get_freeze_count() == count > 0
    finally:
        gc.unfreeze()


ENDED = """
import atexit, gc
from fedattack.base.imports import end_without_collections
atexit.register(lambda: print("frozen:", gc.get_freeze_count() > 0))
end_without_collections()
"""
BOUND = """
class Meta(type):
    __module__ = "nanobind"
"""


@pytest.mark.parametrize(("besides", "frozen"), [("", True), (BOUND, False)])
def test_nothing_is_collected_at_the_end_unless_a_library_would_list_it_as_leaked(besides, frozen):
    # What is registered first is called last.
    done = subprocess.run([sys.executable, "-c", ENDED + besides], capture_output=True, text=True, check=True)
    assert done.stdout == f"frozen: {frozen}\n"


@pytest.mark.skipif(not find_spec("triton"), reason="needs Triton")
def test_triton_lists_nothing_as_leaked():
    done = subprocess.run([sys.executable, "-c", f"{ENDED}import triton"], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_modules_are_imported_beside_other_work():
    imported = threading.Event()
    with importing_beside(imported.set):
        assert imported.wait(60)
    with importing_beside(lambda: importlib.import_module("fedattack.nothing_of_this_name")):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "fedattack-imports"]
