import gc
import importlib
import threading

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


def test_modules_are_imported_beside_other_work():
    imported = threading.Event()
    with importing_beside(imported.set):
        assert imported.wait(60)
    with importing_beside(lambda: importlib.import_module("fedattack.nothing_of_this_name")):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "fedattack-imports"]
