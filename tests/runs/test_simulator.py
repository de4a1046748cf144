import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import psutil
import pytest
import torch

import fedattack
from fedattack.base.errors import MESSAGE, ConfigError, RunError
from fedattack.runs import bundle, logs, reaper, runtimes
from fedattack.runs import runtime as base
from fedattack.runs.simulator import Simulator

PYPROJECT = """
[project]
name = "tiny"
version = "1.0.0"
description = "adds one to three zeros"
license = "Apache-2.0"
dependencies = ["flwr[simulation]"]

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "strategies.server:app"
clientapp = "clients.app:app"

[tool.flwr.app.config]
fault = "none"
output = ""
note = ""

[tool.flwr.federations]
default = "shared"

[tool.flwr.federations.shared]
options.num-supernodes = 2
"""
SERVER = """
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()

@app.main()
def main(grid: Grid, context: Context) -> None:
    print("server cwd", os.getcwd(), "note", context.run_config["note"])
    if context.run_config["fault"] == "server":
        raise ValueError("the server fell over")
    if context.run_config["fault"] == "sleep":
        time.sleep(600)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    zeros = ArrayRecord({"w": Array(np.zeros(3, np.float32))})
    result = strategy.start(grid=grid, initial_arrays=zeros, num_rounds=2)
    Path(context.run_config["output"]).write_text(repr(result.arrays["w"].numpy().tolist()))
"""
CLIENT = """
import os
import signal

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(msg: Message, context: Context) -> Message:
    print("client threads", os.environ.get("OMP_NUM_THREADS"))
    if context.run_config["fault"] == "client" and context.node_config["partition-id"] == 0:
        raise ValueError("the client fell over")
    if context.run_config["fault"] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    arrays = ArrayRecord({"w": Array(msg.content["arrays"]["w"].numpy() + 1)})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=msg)
"""
# Two clients of three failed, then the ServerApp tripped over the missing arrays; shortened from a real log.
CRASH_LOG = """\
\x1b[92mINFO \x1b[0m:      configure_train: Sampled 3 nodes (out of 3)
RESULT: not an error
\x1b[91mERROR \x1b[0m:     An exception was raised when processing a message by RayBackend
\x1b[91mERROR \x1b[0m:     \x1b[36mray::ClientAppActor.run()\x1b[39m (pid=83, ip=192.0.2.2, actor_id=d68)
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/apps/tests.tiny.1.0.0.6b234b6b/tiny/client.py", line 8, in train
    raise ValueError("the client fell over")
ValueError: the client fell over

The above exception was the direct cause of the following exception:

\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=83, ip=192.0.2.2, actor_id=d68)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/flwr/simulation/ray_transport/ray_actor.py", line 65, in run
    raise ClientAppException(str(ex)) from ex
flwr.clientapp.client_app.ClientAppException:
Exception ClientAppException occurred. Message: the client fell over
\x1b[91mERROR \x1b[0m:     Simulation raised an exception
Traceback (most recent call last):
  File "/flwr/simulation/app.py", line 337, in run_simulation_process
    simulation_result = _run_simulation(
                        ^^^^^^^^^^^^^^^^
  File "/apps/tests.tiny.1.0.0.6b234b6b/tiny/server.py", line 17, in main
    print("RESULT", r.arrays["w"].numpy())
KeyError: 'w'
\x1b[91mERROR \x1b[0m:     Exit Code: 700

An unhandled exception occurred when running the simulation.
"""
WRAPPED_LOG = """\
Traceback (most recent call last):
  File "/flwr/ray_actor.py", line 136, in pool_size_from_resources
    raise ValueError(
ValueError: ActorPool is empty. Stopping Simulation.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/flwr/vce_api.py", line 267, in run_api
    raise RuntimeError("Simulation Runtime crashed.") from ex
RuntimeError: Simulation Runtime crashed.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/flwr/run_simulation.py", line 347, in _main_loop
    raise RuntimeError("An error was encountered. Ending simulation.") from ex
RuntimeError: An error was encountered. Ending simulation.
"""


def write_app(folder: Path) -> Path:
    for name, text in {
        "pyproject.toml": PYPROJECT,
        "strategies/__init__.py": "",
        "strategies/server.py": SERVER,
        "clients/__init__.py": "",
        "clients/app.py": CLIENT,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def home_of(simulator: Simulator) -> Path:
    assert simulator._home is not None
    return simulator._home


def give_up_after(seconds: float) -> Callable[[], None]:
    """Return what a run calls while it goes on, and which ends it then."""
    deadline = time.monotonic() + seconds

    def poll() -> None:
        if time.monotonic() > deadline:
            raise TimeoutError

    return poll


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return False


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def answer_to_stranger(port: int, output: Path) -> str:
    """Ask a Ray for work as a process without its token does; returns what was said until it was refused or served."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY")}
    # Without it Ray would look for 127.0.0.1 at this machine's outer address.
    environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    with output.open("wb") as file:
        stranger = subprocess.Popen(
            [sys.executable, "-c", STRANGER, str(port)], env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    # Ray asks again and again where it is refused.
    until = time.monotonic() + 60
    while "InvalidAuthToken" not in output.read_text() and stranger.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    stranger.kill()
    stranger.wait()
    return output.read_text()


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(("told", "expected"), [("3", 3), ("", None), ("default", None), ("0", None)])
def test_a_simulation_has_the_cpus_of_its_process_or_as_many_as_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, expected: int | None
) -> None:
    monkeypatch.setenv("PYTHON_CPU_COUNT", told)
    wanted = expected or len(psutil.Process().cpu_affinity())
    options = Simulator(write_app(tmp_path), supernodes=30, log=tmp_path / "log")._run_options
    assert options[1].endswith(f"init-args-num-cpus={min(wanted, 30)}")


def test_a_simulation_has_no_more_clients_at_a_time_than_there_is_memory_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_CPU_COUNT", "8")
    for free, expected in ((3.5, 3), (0.2, 1), (100, 8)):
        monkeypatch.setattr(psutil, "virtual_memory", lambda free=free: SimpleNamespace(available=free * 2**30))
        options = Simulator(write_app(tmp_path), supernodes=30, log=tmp_path / "log")._run_options
        assert options[1].endswith(f"init-args-num-cpus={expected}")


@pytest.mark.parametrize(
    ("device", "clients", "gpus", "gigabytes", "share"),
    [
        ("cpu", 10, 1, 80, 0.0),
        ("auto", 10, 0, 80, 0.0),
        ("auto", 10, 1, 80, 0.1),
        ("cuda:0", 7, 1, 80, 0.1428),  # Ray would round 1/7 up, and one client would wait
        ("cuda", 10, 1, 4, 0.25),  # no more than fit onto it
        ("cuda", 5, 8, 80, 1.0),  # more than one GPU no client takes
        ("cuda", 10, 4, 80, 0.3333),
    ],
)
def test_clients_share_the_gpus(
    monkeypatch: pytest.MonkeyPatch, device: str, clients: int, gpus: int, gigabytes: int, share: float
) -> None:
    monkeypatch.setattr(runtimes, "may_have_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    memory = SimpleNamespace(total_memory=gigabytes * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: memory)
    assert runtimes._gpu_share(device, clients) == share


def test_torch_is_not_asked_where_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "may_have_gpu", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("asked"))
    assert runtimes._gpu_share("auto", 10) == 0.0


def test_clients_take_the_gpu_that_ray_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ConfigError, match="device=cuda:1: simulated clients take the GPU that Ray gives them"):
        runtimes._gpu_share("cuda:1", 10)


def test_exceptions_are_found_in_order_without_colours_and_wrappers() -> None:
    assert logs.exceptions_in(CRASH_LOG) == [
        "ValueError: the client fell over",
        "flwr.clientapp.client_app.ClientAppException:",
        "KeyError: 'w'",
    ]
    assert logs.exceptions_in(WRAPPED_LOG) == ["ValueError: ActorPool is empty. Stopping Simulation."]
    assert logs.exceptions_in("INFO: all is well\nValueError: only quoted\n") == []
    of_ray = '(Actor pid=7, ip=192.0.2.2) Traceback:\n(Actor pid=7)   File "a.py", line 1, in f\n(Actor pid=7) a.B: c\n'
    assert logs.exceptions_in(of_ray) == ["a.B: c"]


def test_failure_reason_names_server_and_client() -> None:
    reason = logs.failure_reason(CRASH_LOG, "Simulation failed with exception: 'w'")
    assert reason == "KeyError: 'w' (a client had failed before with ValueError: the client fell over)"


def test_failure_reason_does_not_blame_an_old_exception_for_a_lost_process() -> None:
    server_only = CRASH_LOG.partition("Simulation raised")[2]
    assert logs.exceptions_in(server_only) == ["KeyError: 'w'"]
    assert logs.failure_reason(server_only, "No heartbeat received\nfrom the task") == (
        "No heartbeat received from the task"
    )


def test_client_error_is_none_without_a_client_failure() -> None:
    assert logs.client_error(CRASH_LOG) == "ValueError: the client fell over"
    assert logs.client_error(WRAPPED_LOG) is None


def test_what_ray_says_of_a_killed_client_becomes_one_short_line() -> None:
    """Ray names the processes that took most memory, with their whole commands."""
    listed = "ray::ClientAppActor.run " * 150
    died = f"ray.exceptions.OutOfMemoryError: Task was killed: {listed}"
    log = f'An exception was raised when processing a message by RayBackend\n  File "a.py", line 1, in f\n{died}\n'
    told = logs.client_error(log) or ""
    assert told.startswith("ray.exceptions.OutOfMemoryError: Task was killed: ray")
    assert told.endswith("; it was killed, often for lack of memory")
    assert len(told) <= 150
    for reason in (logs.failure_reason(log, died), logs.refusal_reason(died)):
        assert reason.startswith("ray.exceptions.OutOfMemoryError")
        assert len(reason) <= 150


def test_refusal_reason_joins_the_box_and_the_superlinks_reason() -> None:
    log = (
        "\x1b[91mERROR \x1b[0m:     Could not start run: Key 'nope' is not present\n"
        "ERROR : [ApiError:15] Could not start run for flwr_aid=<id:none>: Key 'nope' is not present\n"
        "╭─ Error ─────╮\n│ [code: 15]  │\n│ Invalid.    │\n╰─────────────╯\n"
    )
    assert logs.refusal_reason(log) == "[code: 15] Invalid. Key 'nope' is not present"
    assert logs.refusal_reason("flwr: something else\n") == "flwr: something else"
    assert logs.refusal_reason("") == "no output"


def test_the_copy_leaves_out_environments_caches_data_and_links(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app")
    for name in ("env/pyvenv.cfg", "env/lib/x.py", ".git/x.py", "clients/__pycache__/x.py", "data/images.npz"):
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text("x")
    (app / "link.py").symlink_to(app / "clients" / "app.py")
    (app / ".gitignore").write_text("runs/\n")
    bundle.copy_app(app, tmp_path / "copy")
    assert set(contents(tmp_path / "copy")) == {
        ".gitignore",
        "pyproject.toml",
        "strategies/__init__.py",
        "strategies/server.py",
        "clients/__init__.py",
        "clients/app.py",
    }


def test_private_folder_leaves_room_for_rays_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 40)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = base._temporary_folder()
    folder.rmdir()
    socket = "/ray/session_2026-01-01_00-00-00_123456_1234567/sockets/plasma_store"
    assert len(os.fsencode(folder)) + len(socket) <= 107
    assert len(socket) == 68


def test_a_proxy_and_a_foreign_ray_cluster_are_kept_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of another cluster")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_PROXY", "example.org")
    environment = base._environment(Path("/home/of/flower"))
    assert not {"RAY_ADDRESS", "RAY_AUTH_TOKEN"} & environment.keys()
    assert environment["RAY_AUTH_MODE"] == "token"
    assert "FORCE_COLOR" not in environment, "Flower would colour its JSON"
    assert environment["NO_PROXY"] == "example.org,127.0.0.1,localhost"
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)


@pytest.mark.slow
def test_reap_finds_detached_and_disguised_processes_and_spares_others(tmp_path: Path) -> None:
    # The leader starts one process that hides its environment and one that detaches, and ignores SIGTERM itself.
    script = dedent("""
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
        subprocess.Popen(sleep, env={})
        subprocess.Popen(sleep, start_new_session=True)
        time.sleep(300)
    """)
    environment = {**os.environ, "FLWR_HOME": str(tmp_path)}
    leader = subprocess.Popen([sys.executable, "-c", script], env=environment, start_new_session=True)
    stranger = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(300)"],
        env={**environment, "FLWR_HOME": f"{tmp_path}-other"},
        start_new_session=True,
    )
    try:
        assert wait_until(lambda: len(reaper.processes_of(tmp_path)) == 3, 20)
        family = [psutil.Process(leader.pid), *psutil.Process(leader.pid).children()]
        assert len(family) == 3
        reaper.reap(tmp_path)
        leader.wait(5)
        assert not any(alive(process) for process in family)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"supernodes": 0}, "supernodes >= 1"), ({"supernodes": 2, "cpus": 0}, "cpus >= 1")],
)
def test_sizes_out_of_range_are_refused(tmp_path: Path, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Simulator(write_app(tmp_path), log=tmp_path / "log", **arguments)


def test_a_folder_that_is_no_app_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pyproject\.toml, found none"):
        Simulator(tmp_path, supernodes=2, log=tmp_path / "log")


def test_a_run_config_value_of_another_type_is_refused(tmp_path: Path) -> None:
    simulator = Simulator(write_app(tmp_path), supernodes=2, log=tmp_path / "log")
    with pytest.raises(ConfigError, match=r"'rounds': expected a string, .* got list"):
        simulator.run({"rounds": [1, 2]})  # type: ignore[dict-item]


def test_an_app_names_no_superlink_of_its_own(tmp_path: Path) -> None:
    # `flwr run` would use the SuperLink that it names, which all projects of a machine share.
    with Simulator(write_app(tmp_path / "app"), supernodes=3, log=tmp_path / "run.log") as runner:
        copied = (home_of(runner) / "app" / "pyproject.toml").read_text()
    assert "shared" not in copied
    assert 'fault = "none"' in copied
    assert "shared" in (tmp_path / "app" / "pyproject.toml").read_text()


@pytest.mark.parametrize(("ended", "why"), [(0, "ended at once"), (None, "did not start within 60 s, as on a busy")])
def test_a_superlink_that_does_not_start_is_told_apart_from_one_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: int | None, why: str
) -> None:
    process = SimpleNamespace(poll=lambda: ended, wait=lambda: 0)
    monkeypatch.setattr(Simulator, "_start", lambda *words: process)
    monkeypatch.setattr("fedattack.runs.simulator._listens", lambda process, port: False)
    runner = Simulator(write_app(tmp_path / "app"), supernodes=3, log=tmp_path / "run.log")
    with runner, pytest.raises(RunError, match=f"Flower's SuperLink {why}.*; run the same command again"):
        runner.ensure_up()


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    folder = tmp_path_factory.mktemp("launch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", "/proc/no-such-home")
        patch.delenv("OMP_NUM_THREADS", raising=False)
        with Simulator(write_app(folder / "app"), supernodes=3, log=folder / "logs" / "run.log") as shared:
            yield shared


@pytest.mark.flower
@pytest.mark.slow
def test_a_run_completes_beside_bogus_modules_and_a_failing_client(
    simulator: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bogus = tmp_path / "clients"
    bogus.mkdir()
    (bogus / "__init__.py").write_text("raise RuntimeError('the wrong clients package')")
    monkeypatch.chdir(tmp_path)
    before = contents(simulator.app)
    polls: list[float] = []

    client_error = simulator.run(
        {"fault": "client", "output": str(tmp_path / "result"), "note": 'it\'s "quoted" = [x]'},
        on_poll=lambda: polls.append(time.monotonic()),
    )
    assert client_error == "ValueError: the client fell over"
    assert (tmp_path / "result").read_text() == "[2.0, 2.0, 2.0]"
    log = simulator.log.read_text()
    assert f'server cwd {home_of(simulator) / "cwd"} note it\'s "quoted" = [x]' in log
    assert "client threads 1" in log
    assert len(polls) > 2 * (polls[-1] - polls[0])
    assert contents(simulator.app) == before
    assert {path.name for path in tmp_path.iterdir()} == {"clients", "result"}


STRANGER = """
import sys

import ray

ray.init(address="127.0.0.1:" + sys.argv[1], logging_level="ERROR", log_to_driver=False)
print(ray.get(ray.remote(num_cpus=0)(lambda: "a stranger's code ran").remote(), timeout=30))
"""


def sockets_of(processes: list[psutil.Process]) -> dict[tuple[str, int], str]:
    """Return the addresses and ports on which processes listen, with the names of their programs."""
    found = {}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            for entry in process.net_connections(kind="inet"):
                if entry.status == psutil.CONN_LISTEN or (entry.laddr and entry.type == socket.SOCK_DGRAM):
                    found[entry.laddr.ip, entry.laddr.port] = process.name()
    return found


@pytest.mark.flower
@pytest.mark.slow
def test_a_run_listens_on_the_loopback_alone_and_its_ray_refuses_a_stranger(
    simulator: Simulator, tmp_path: Path
) -> None:
    """A process that reaches Ray runs code as the user: whoever was not started for the run must not get that far."""
    seen: dict[tuple[str, int], str] = {}
    answers: list[str] = []

    def look() -> None:
        seen.update(sockets_of(reaper.processes_of(home_of(simulator))))
        ports = [port for (_, port), name in seen.items() if name == "gcs_server"]
        if ports and "raylet" in seen.values() and not answers:
            answers.append(answer_to_stranger(ports[0], tmp_path / "stranger"))

    simulator.run({"output": str(tmp_path / "result")}, on_poll=look)
    assert {"gcs_server", "raylet"} <= set(seen.values())
    assert {ip for ip, _ in seen} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, seen
    assert "InvalidAuthToken" in answers[0]
    assert "a stranger's code ran" not in answers[0]


@pytest.mark.flower
@pytest.mark.slow
def test_a_crashed_serverapp_is_an_error_that_names_the_exception(simulator: Simulator) -> None:
    with pytest.raises(RunError, match=r"finished:failed.*: ValueError: the server fell over; ") as caught:
        simulator.run({"fault": "server"})
    assert str(simulator.log) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Traceback" in simulator.log.read_text()


@pytest.mark.long
@pytest.mark.flower
def test_clients_that_are_killed_end_a_run_in_one_line(simulator: Simulator, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="; it was killed, often for lack of memory") as caught:
        simulator.run({"fault": "killed", "output": str(tmp_path / "result")})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= MESSAGE


@pytest.mark.flower
@pytest.mark.slow
def test_an_unknown_key_is_an_error_that_names_the_key(simulator: Simulator) -> None:
    with pytest.raises(RunError, match=r"code: 15.*'nope'") as caught:
        simulator.run({"nope": 1})
    assert "\n" not in str(caught.value)


@pytest.mark.flower
@pytest.mark.slow
def test_whoever_gives_a_run_up_ends_it_and_its_processes(simulator: Simulator) -> None:
    with pytest.raises(TimeoutError):
        simulator.run({"fault": "sleep"}, on_poll=give_up_after(6))
    assert reaper.processes_of(home_of(simulator)) == []


@pytest.mark.flower
@pytest.mark.slow
def test_nothing_is_left_after_an_interrupt_or_the_parents_death(tmp_path: Path) -> None:
    """Of two simulators at once, one loses its parent to kill -9, which leaves the other alone until it is interrupted.

    Both wait in their ServerApp, so all of Flower's processes are there.
    """
    app = write_app(tmp_path / "app")
    script = dedent("""
        import sys
        from pathlib import Path
        from fedattack.runs.simulator import Simulator
        with Simulator(Path(sys.argv[1]), supernodes=2, log=Path(sys.argv[2])) as simulator:
            print(simulator._home, flush=True)
            simulator.run({"fault": "sleep"})
    """)
    search_path = os.pathsep.join([str(Path(fedattack.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    doomed = subprocess.Popen(
        [sys.executable, "-c", script, str(app), str(tmp_path / "doomed.log")],
        env={**os.environ, "PYTHONPATH": search_path},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert doomed.stdout is not None
    doomed_home = Path(doomed.stdout.readline().strip())
    log = tmp_path / "own.log"
    homes: list[Path] = []
    seen: list[psutil.Process] = []
    ports: list[int] = []

    def waits(log: Path) -> bool:
        return log.exists() and "server cwd" in log.read_text()

    def kill_the_other_then_interrupt() -> None:
        if not (waits(log) and waits(tmp_path / "doomed.log")):
            return
        assert len(reaper.processes_of(doomed_home)) >= 4
        seen.extend(reaper.processes_of(homes[0]))
        ports.append(int(re.findall(r"Uvicorn running on http://127.0.0.1:(\d+)", log.read_text())[-1]))
        doomed.kill()
        assert wait_until(lambda: reaper.processes_of(doomed_home) == [] and not doomed_home.exists(), 20)
        assert len(seen) >= 4
        assert listening(ports[0])
        assert "exception" not in log.read_text()
        raise KeyboardInterrupt

    def interrupted_run() -> None:
        with Simulator(app, supernodes=2, log=log) as simulator:
            homes.append(home_of(simulator))
            simulator.run({"fault": "sleep"}, on_poll=kill_the_other_then_interrupt)

    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted_run()
        assert not any(alive(process) for process in seen)
        assert not listening(ports[0])
        assert not homes[0].exists()
    finally:
        doomed.kill()
        doomed.communicate()
