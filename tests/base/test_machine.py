import os
import subprocess
import sys
import threading

import psutil
import pytest

from fedattack.base.machine import count_processor_seconds, end_with_parent, free_memory, usable_cpus

GB = 10**9
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_without_a_container_the_machine_counts(tmp_path):
    assert 0.5 < free_memory(tmp_path) / psutil.virtual_memory().available < 2


STAT = "anon 1\ninactive_file 100000000\nactive_file 7"


@pytest.mark.parametrize(
    ("most", "taken", "free"), [(GB, 700_000_000, 400_000_000), (GB, GB + 200_000_000, 0), ("max", 5, None)]
)
def test_a_containers_bound_counts_and_caches_of_files_are_free(tmp_path, most, taken, free):
    write(tmp_path, memory__max=most, memory__current=taken, memory__stat=STAT)
    assert free_memory(tmp_path) == free if free is not None else free_memory(tmp_path) > 10**7


def test_an_older_kernels_bound_counts(tmp_path):
    stat = "cache 1\ntotal_inactive_file 200000000"
    write(tmp_path / "memory", memory__limit_in_bytes=GB, memory__usage_in_bytes=GB, memory__stat=stat)
    assert free_memory(tmp_path) == 200_000_000


def test_processor_time_counts_children_that_run_and_that_ended():
    spin = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    before = count_processor_seconds()
    subprocess.run([sys.executable, "-c", spin], check=True)
    ended = count_processor_seconds()
    assert ended - before >= 0.25
    with subprocess.Popen([sys.executable, "-c", f"{spin}print(1, flush=True)\ninput()"], **PIPES) as child:
        child.stdout.readline()
        assert count_processor_seconds() - ended >= 0.25
        child.communicate(b"\n")


def test_the_number_of_cpus_can_be_told(monkeypatch):
    monkeypatch.setenv("PYTHON_CPU_COUNT", "7")
    assert usable_cpus() == 7
    monkeypatch.setenv("PYTHON_CPU_COUNT", "0")
    assert usable_cpus() >= 1


def test_who_works_for_itself_waits_for_no_parent():
    """Where no processes can be made, joblib does all in the process that asked; it must not end itself."""
    end_with_parent(os.getpid())
    assert not any(thread.name == "fedattack-parent" for thread in threading.enumerate())
