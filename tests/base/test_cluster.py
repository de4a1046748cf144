"""Pieces of work on a cluster of one machine, and on one of two of which one is killed."""

import os
import signal
import socket
import time
from functools import partial

import pytest
import torch

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.attacks._fan_out import fan_out
from fedattack.base import cluster
from fedattack.base.cluster import TRIES, Cluster, Pieces, choose, chosen, connect, describe_machine, find_misfit
from fedattack.base.errors import MESSAGE, ConfigError, RunError
from fedattack.record import Record
from tests.attacks.test_contract import same_scores
from tests.worlds.federation import write_property_run, write_run
from tests.worlds.inversion import write_inversion_run

ray = pytest.importorskip("ray")

SMALL = 100_000_000


def squared(wait, number):
    time.sleep(wait)
    return number * number


def noted(shared, number):
    """Leave a file for each try, and square; the second machine dies in the middle of its first piece."""
    folder, second, raylet = shared
    (folder / f"{number}-{time.monotonic_ns()}").touch()
    if ray.get_runtime_context().get_node_id() == second:
        (folder / f"lost-{number}").touch()
        os.kill(raylet, signal.SIGKILL)
        time.sleep(60)
    time.sleep(0.5)
    return number * number


def refused(shared, number):
    raise ConfigError(f"piece {number} is refused")


def unknown(shared, number):
    raise ModuleNotFoundError("No module named 'yours'")


def killed_at_first(folder, number):
    if not (folder / str(number)).exists():
        (folder / str(number)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def killed(folder, number):
    (folder / f"{number}-{time.monotonic_ns()}").touch()
    os.kill(os.getpid(), signal.SIGKILL)


def threads(number):
    return number, os.getpid() != int(os.environ["TEST_DRIVER"]), torch.get_num_threads()


@pytest.fixture(scope="module")
def one_machine():
    os.environ["TEST_DRIVER"] = str(os.getpid())
    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=SMALL, log_to_driver=False)
    yield connect("auto")
    ray.shutdown()


@pytest.fixture
def nothing_chosen():
    yield
    choose("")


def pieces(where, work, shared, count):
    return Pieces(where, work, shared, range(count), cpus=1, memory=SMALL)


@pytest.mark.slow
def test_pieces_come_in_order_each_on_one_thread(one_machine, nothing_chosen):
    choose("auto")
    assert chosen() == "auto"
    found = list(fan_out(threads, range(3), workers=0, memory=1.0))
    assert found == [(number, True, 1) for number in range(3)]


@pytest.mark.slow
def test_the_error_of_a_piece_is_the_callers(one_machine):
    with pytest.raises(ConfigError, match=r"^piece 0 is refused$"):
        list(pieces(one_machine, refused, None, 2).in_order())


@pytest.mark.slow
def test_what_a_machine_cannot_import_is_named(one_machine):
    with pytest.raises(ConfigError, match=r"a machine cannot import what is asked of it .*'yours'"):
        list(pieces(one_machine, unknown, None, 1).in_order())


@pytest.mark.slow
def test_a_piece_whose_worker_is_killed_goes_again(one_machine, tmp_path):
    assert list(pieces(one_machine, killed_at_first, tmp_path, 2).in_order()) == [0, 1]


@pytest.mark.slow
def test_a_piece_that_is_lost_each_time_ends_in_one_line(one_machine, tmp_path):
    (ended,) = pieces(one_machine, killed, tmp_path, 1).as_they_end()
    number, problem = ended
    assert (number, type(problem)) == (0, RunError)
    assert f"a piece of work was lost, {TRIES} times" in str(problem)
    assert "\n" not in str(problem)
    assert len(str(problem)) <= MESSAGE
    assert len(list(tmp_path.iterdir())) == TRIES


@pytest.mark.slow
def test_what_ray_says_of_lacking_memory_is_told_in_one_line(one_machine, monkeypatch):
    """Ray lists the processes that took most."""
    listed = "\n".join(f"{place}\t1.5\tray::piece {'x' * 300}" for place in range(10))
    error = ray.exceptions.OutOfMemoryError(f"Task was killed due to the node running low on memory.\n{listed}")

    def get(reference):
        raise error

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(RunError, match=r"often for lack of memory; .* \(OutOfMemoryError: Task was killed") as told:
        list(pieces(one_machine, squared, 0, 1).in_order())
    assert "\n" not in str(told.value)
    assert len(str(told.value)) <= MESSAGE


def test_a_machine_that_lacks_a_file_is_refused(one_machine, tmp_path):
    (tmp_path / "there.npz").touch()
    connect("auto", [str(tmp_path / "there.npz")])
    with pytest.raises(ConfigError, match=r"--cluster auto: machine \S+ has no /nowhere/x.npz; mount data at the same"):
        connect("auto", [str(tmp_path / "there.npz"), "/nowhere/x.npz"])


def test_a_machine_with_another_fedattack_is_refused(one_machine, monkeypatch):
    """It is this one that is changed: what the machine says is what it has."""
    here = {**describe_machine(), "fedattack": "9.9", "code": "another"}
    monkeypatch.setattr(cluster, "find_misfit", lambda there, _: find_misfit(there, here))
    with pytest.raises(ConfigError, match=r"machine \S+ has another build of fedattack .*9.9.*; give all machines one"):
        connect("auto")


def test_another_cluster_than_the_one_in_use_is_refused(one_machine):
    with pytest.raises(ConfigError, match="--cluster head:6379: this process uses another Ray cluster"):
        connect("head:6379")


def test_a_gpu_that_no_machine_has_is_not_waited_for(one_machine):
    without = Cluster("auto", one_machine.cpus, one_machine.memory, gpus=0)
    with pytest.raises(ConfigError, match="--cluster auto: no machine has a GPU; take --device cpu"):
        Pieces(without, squared, 0, [1], cpus=1, memory=SMALL, gpus=1)


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({}, ""),
        ({"fedattack": "0.2", "code": "b"}, "has another build of fedattack (0.2) than this machine (0.1)"),
        ({"missing": ["torch", "scipy"]}, "lacks torch, scipy; install 'fedattack[audit]' there"),
        ({"absent": ["/data/x.npz"]}, "has no /data/x.npz; mount data at the same path everywhere"),
    ],
)
def test_what_does_not_fit_is_named(there, words):
    here = {"fedattack": "0.1", "code": "a", "missing": [], "absent": []}
    assert find_misfit(here | there, here) == words


def test_as_many_pieces_run_as_machines_have_cpus_and_memory_for():
    where = Cluster("auto", cpus=[4, 2], memory=[3.5, 8.0], gpus=0)
    assert where.at_once(1.0) == 3 + 2
    assert where.at_once(100.0) == 1
    assert Cluster("auto", cpus=[], memory=[], gpus=0).at_once(1.0) == 1


def test_a_cluster_that_was_up_once_is_not_waited_for(tmp_path, monkeypatch):
    """`ray start` leaves a file with its address, and it stays where the machine fails."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **words: pytest.fail("Ray was asked"))
    with pytest.raises(ConfigError, match="--cluster auto: no Ray cluster answers there"):
        connect("auto")


@pytest.mark.parametrize("address", ["", "auto", "head:6379", "ray://10.0.0.1:10001"])
def test_addresses_are_taken(address, nothing_chosen):
    assert choose(address) == address


@pytest.mark.parametrize("address", ["local", "head", "http://head:6379", "head:port", "a b:1"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ConfigError, match=r"--cluster .*: expected auto, HOST:PORT or ray://HOST:PORT"):
        choose(address)


def raylet_of(machine) -> int:
    """Return the process that is the machine, as far as Ray knows: with it all its workers end."""
    return machine.all_processes["raylet"][0].process.pid


@pytest.fixture
def two_machines(monkeypatch):
    """Give the address of a cluster of two machines of one CPU, and the second machine."""
    from ray.cluster_utils import Cluster as Machines

    monkeypatch.setenv("TEST_DRIVER", str(os.getpid()))
    of_one = {"num_cpus": 1, "object_store_memory": SMALL}
    machines = Machines(initialize_head=True, head_node_args={**of_one, "include_dashboard": False})
    second = machines.add_node(**of_one)
    machines.wait_for_nodes()

    yield machines.address, second
    choose("")
    ray.shutdown()
    machines.shutdown()


@pytest.mark.long
def test_with_a_machine_killed_in_the_middle_nothing_is_lost(two_machines, tmp_path, capfd, caplog):
    address, second = two_machines
    where = connect(address)
    assert where.cpus == [1, 1]
    shared = tmp_path, second.node_id, raylet_of(second)
    assert list(pieces(where, noted, shared, 20).in_order()) == [number**2 for number in range(20)]
    (lost,) = tmp_path.glob("lost-*")
    tries = [path.name.split("-")[0] for path in tmp_path.glob("[0-9]*-*")]
    assert len(tries) == 21, "what was done is not made again"
    assert tries.count(lost.name.removeprefix("lost-")) == 2
    assert capfd.readouterr().out == ""
    assert all(len(record.getMessage()) <= MESSAGE for record in caplog.records)


def attacked(name, folder, options, **words):
    attack = ATTACKS[name].with_options(options)
    return attack.run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu", **words)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "write", "options"),
    [
        ("prolin", write_property_run, {}),
        ("membership", partial(write_run, epochs=10, auxiliary=60, rounds=6), {"shadows": "2"}),
        ("inversion", partial(write_inversion_run, clients=6), {"iterations": "40", "restarts": "4"}),
    ],
)
def test_with_a_machine_killed_an_attack_finds_the_same_to_the_last_bit(two_machines, tmp_path, name, write, options):
    address, second = two_machines
    folder = write(tmp_path / "run")
    alone = attacked(name, folder, options)
    choose(address)
    killed = []

    def progress(done: int, total: int) -> None:
        if done == 3:
            assert done < total
            os.kill(raylet_of(second), signal.SIGKILL)
            killed.append(second)

    same_scores(alone, attacked(name, folder, options, progress=progress))
    assert killed == [second]


@pytest.mark.long
def test_a_machine_outside_of_the_cluster_sends_pieces_too():
    from ray.cluster_utils import Cluster as Machines

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = {"num_cpus": 1, "include_dashboard": False, "ray_client_server_port": port}
    machines = Machines(initialize_head=True, head_node_args=words)
    try:
        until = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert time.monotonic() < until
            time.sleep(0.2)
        where = connect(f"ray://127.0.0.1:{port}")
        assert list(pieces(where, squared, 0, 3).in_order()) == [0, 1, 4]
        assert sorted(pieces(where, squared, 0, 3).as_they_end()) == [(0, 0), (1, 1), (2, 4)]
        with pytest.raises(ConfigError, match=r"^piece 0 is refused$"):
            list(pieces(where, refused, None, 1).in_order())
        assert list(pieces(where, squared, 0, 1).in_order()) == [0]
    finally:
        ray.shutdown()
        machines.shutdown()


@pytest.mark.long
def test_a_worker_that_ray_kills_for_memory_ends_in_one_line(tmp_path):
    """Ray is told that the machine is full."""
    full = {"memory_usage_threshold": 0.001, "memory_monitor_refresh_ms": 100}
    ray.init(
        address="local",
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=SMALL,
        log_to_driver=False,
        _system_config=full,
    )
    try:
        room = Cluster("auto", cpus=[1], memory=[4.0 * SMALL], gpus=0)
        with pytest.raises(
            RunError, match=rf"lost, {TRIES} times .*often for lack of memory.*OutOfMemoryError"
        ) as told:
            list(pieces(room, squared, 60, 1).in_order())
        assert len(str(told.value)) <= MESSAGE
    finally:
        ray.shutdown()


@pytest.mark.long
def test_a_cluster_of_another_version_is_refused_in_one_line(two_machines, monkeypatch):
    from ray._private import utils

    address, _ = two_machines
    monkeypatch.setattr(utils, "compute_version_info", lambda: ("1.2.3", "3.8.0"))
    with pytest.raises(ConfigError, match=f"--cluster {address}: it has other versions of Ray or Python") as told:
        connect(address)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) <= MESSAGE
