"""What every attack promises, checked over the registry, and what every judge of one lists."""

import hashlib
import importlib.util
import pickle
import shutil
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, Knowledge, Scores, _fan_out, read_knowledge
from fedattack.attacks._fan_out import PROCESS
from fedattack.attacks.needs import NEEDS_VIEW
from fedattack.attacks.registry import THREATS, threat_of
from fedattack.audit.describe import notes_of
from fedattack.audit.judge import judge_of
from fedattack.audit.judging import judge_attacks
from fedattack.audit.opened import open_runs
from fedattack.base.errors import DataError, NeedsError
from fedattack.record import Exchange, Keep, Record, RecordWriter, Reply, project_record, shrink_record
from fedattack.record.folder import RunFolder
from fedattack.record.format import PROTOCOLS
from tests.attacks.listed import tables_of
from tests.worlds.federation import write_run


def import_contracts():
    """Import the module `contract` of each threat; a threat of another package may have one in its package."""
    contracts = {}
    for name, threat in THREATS.items():
        module = f"tests.threats.{name}.contract" if threat.built_in else f"{threat.package}.contract"
        if threat.built_in or importlib.util.find_spec(module):
            contracts[name] = importlib.import_module(module)
    return contracts


CONTRACTS = import_contracts()

# A folder in which each attack has all that it needs, for each protocol that it takes.
RUNS = {case: write for contract in CONTRACTS.values() for case, write in contract.RUNS.items()}

# What keeps a long search short where its result does not matter.
QUICK = {name: options for contract in CONTRACTS.values() for name, options in getattr(contract, "QUICK", {}).items()}


# What takes minutes in all.
SLOW = ("ara",)


def cases():
    for name, attack in ATTACKS.items():
        if threat_of(name).name not in CONTRACTS:
            continue
        for protocol in attack.needs.protocols:
            marks = [pytest.mark.slow] if name in SLOW else []
            yield pytest.param((name, protocol), id=f"{name}-{protocol}", marks=marks)


@pytest.fixture(scope="module", params=cases())
def case(request, tmp_path_factory):
    name, protocol = request.param
    folder = RUNS[name, protocol](tmp_path_factory.mktemp(f"{name}-{protocol}"))
    assert Record(folder / "record").protocol == protocol
    return ATTACKS[name].with_options(QUICK.get(name, {})), folder


def run(attack, folder, **changes):
    return attack.run(Record(folder / "record"), read_knowledge(folder / "knowledge"), device="cpu", **changes)


@pytest.mark.slow
def test_same_seed_same_scores(case):
    attack, folder = case
    same_scores(run(attack, folder, seed=5), run(attack, folder, seed=5))


def test_the_record_is_not_changed(case):
    attack, folder = case

    def digest():
        files = sorted(path for path in (folder / "record").rglob("*") if path.is_file())
        return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]

    before = digest()
    run(attack, folder)
    assert digest() == before


def test_a_missing_need_is_refused_by_name(case, tmp_path):
    attack, folder = case
    record, known = Record(folder / "record"), read_knowledge(folder / "knowledge")
    for need in ["model" if need in ("losses", "layers") else need for need in attack.needs.knowledge]:
        lacking = Knowledge(**{**vars(known), need: None})
        with pytest.raises(
            NeedsError, match=f"attack {attack.name} cannot be made of .*: .*the attacker does not know"
        ):
            attack.run(record, lacking)
    kind = {"view": attack.needs.views[0], "protocol": attack.needs.protocols[0]}
    RecordWriter(tmp_path / "empty", server=attack.needs.server or "passive", **kind).close()
    with pytest.raises(NeedsError, match="holds none"):
        attack.run(Record(tmp_path / "empty"), known)


def test_clients_of_another_optimizer_are_refused_where_gradients_are_read_out_of_updates(case):
    attack, folder = case
    record, known = Record(folder / "record"), read_knowledge(folder / "knowledge")
    if known.training is None:
        pytest.skip("this attacker does not know how clients train")
    adam = replace(known, training=replace(known.training, momentum=0.0, optimizer="Adam"))
    refused = attack.find_obstacles(record, adam)
    assert bool(refused) == (attack.needs.sgd and record.protocol != "fedsgd")
    if refused:
        with pytest.raises(
            NeedsError, match=f"attack {attack.name} cannot be made of .*: it reads gradients .* train by Adam"
        ):
            attack.run(record, adam)
    else:
        assert attack.run(record, adam, device="cpu").attack == attack.name


@pytest.mark.slow
def test_a_record_of_another_view_is_refused_by_name(case, tmp_path):
    attack, folder = case
    known = read_knowledge(folder / "knowledge")
    individual = Record(write_run(tmp_path / "each") / "record")
    records = {"individual": individual, "aggregate": project_record(individual, tmp_path / "sums")}
    if set(records) == set(attack.needs.views):
        pytest.skip("takes every view")
    for view in records.keys() - set(attack.needs.views):
        words = f"attack {attack.name} cannot be made of .*: {NEEDS_VIEW[attack.needs.views[0]].what}"
        with pytest.raises(NeedsError, match=words) as refusal:
            attack.run(records[view], known)
        assert ("fedattack project" in str(refusal.value)) == (view == "individual")


def test_a_record_of_another_protocol_is_refused_by_name(case, tmp_path):
    attack, folder = case
    others = set(PROTOCOLS) - set(attack.needs.protocols)
    if not others:
        pytest.skip("takes every protocol")
    for other in others:
        RecordWriter(tmp_path / other, view=attack.needs.views[0], protocol=other).close()
        words = (
            f"attack {attack.name} cannot be made of .*: it needs .*, but these clients send {PROTOCOLS[other].replies}"
        )
        with pytest.raises(NeedsError, match=words):
            attack.run(Record(tmp_path / other), read_knowledge(folder / "knowledge"))


def test_the_truth_is_not_needed(case, tmp_path):
    attack, folder = case
    (tmp_path / "alone").mkdir()
    for name in ("record", "knowledge"):
        (tmp_path / "alone" / name).symlink_to(folder / name)
    assert run(attack, tmp_path / "alone").arrays.keys() == run(attack, folder).arrays.keys()


# More pieces than one.
PIECES = {"inversion": {"restarts": "4"}}


def shared_case(case):
    attack, folder = case
    if not attack.options.shares_work():
        pytest.skip("is made in one piece")
    return attack.with_options(PIECES.get(attack.name, {})), folder


def same_scores(one, other):
    assert (one.facts, one.notes) == (other.facts, other.notes)
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        assert array.tobytes() == other.arrays[name].tobytes(), name


@pytest.mark.slow
def test_two_processes_find_what_one_does(case):
    attack, folder = shared_case(case)
    one, two = (run(attack.with_options({"workers": count}), folder, seed=3) for count in "12")
    same_scores(one, two)


@pytest.mark.slow
def test_pieces_travel_with_all_that_they_need_and_say_how_much_they_take(case, monkeypatch):
    """What goes to a cluster is pickled; the record is not there."""
    attack, folder = shared_case(case)
    alone = run(attack.with_options({"workers": "1"}), folder)
    sent = []

    def elsewhere(work, items, address, room, gpus, paths):
        shared = pickle.dumps(work)
        assert str(folder).encode() not in shared
        for item in items:
            sent.append(pickle.dumps(item))
            assert str(folder).encode() not in sent[-1]
            assert (address, gpus, list(paths)) == ("head:6379", 0, [])
            if "memory" in attack.options.list_settings():
                assert room <= attack.options.memory + PROCESS
            yield _fan_out._alone(pickle.loads(shared), pickle.loads(sent[-1]))  # noqa: S301 our own

    monkeypatch.setattr(_fan_out, "chosen", lambda: "head:6379")
    monkeypatch.setattr(_fan_out, "_on_cluster", elsewhere)
    done = []
    same_scores(alone, run(attack, folder, progress=lambda *steps: done.append(steps)))
    assert len(sent) > 1
    assert done == sorted(done)
    assert done[-1][0] == done[-1][1]


def halved(arrays):
    if arrays is None:
        return None
    return {name: array.astype(np.float16) if array.dtype.kind == "f" else array for name, array in arrays.items()}


def test_arrays_of_half_precision_are_taken(case, tmp_path):
    attack, folder = case
    record = Record(folder / "record")
    writer = RecordWriter(
        tmp_path / "record",
        view=record.view,
        protocol=record.protocol,
        server=record.server,
        seed=record.seed,
        facts=record.facts,
        aggregation=record.manifest["aggregation"],
    )
    for item in record:
        replies = [
            Reply(
                *(seen.node, seen.status, halved(seen.arrays), seen.num_examples, seen.metrics),
                received=halved(seen.received) if seen.singled_out else None,
            )
            for seen in item.observations
        ]
        writer.write(Exchange(item.number, halved(item.common), replies, aggregate=halved(item.aggregate)))
    writer.close(final=halved(record.final))
    (tmp_path / "knowledge").symlink_to(folder / "knowledge")
    assert run(attack, tmp_path).arrays.keys() == run(attack, folder).arrays.keys()


def thinned(folder, to, keep):
    """Copy a run folder with a record that keeps less."""
    if Record(folder / "record").server != "passive":
        pytest.skip("the record of an active server is kept whole")
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("record", "scores"))
    return shrink_record(Record(folder / "record"), to / "record", keep)


# One kind of thinning each, and what an attack that does not take it says.
THINNINGS = {
    "rounds": (Keep(every=2), "needs every round; .* keeps every 2nd round"),
    "clients": (Keep(clients=0.5), "needs the replies of all clients; .* keeps the replies of 50 %"),
}


@pytest.mark.parametrize("kind", THINNINGS)
@pytest.mark.slow
def test_a_thinned_record_is_refused_by_name_or_gives_the_scores_of_what_is_there(case, kind, tmp_path):
    """Refused as declared; or as good as a record in which what was left out never arrived."""
    attack, folder = case
    keep, words = THINNINGS[kind]
    if kind == "clients" and attack.needs.views == ("aggregate",):
        pytest.skip("sums have no clients to leave out")
    record = thinned(folder, tmp_path / "thin", keep)
    known = read_knowledge(folder / "knowledge")
    if kind not in attack.needs.takes:
        with pytest.raises(NeedsError, match=f"attack {attack.name} cannot be made of .*: it {words}"):
            attack.run(record, known)
        return
    scores = attack.run(record, known, device="cpu", seed=5)
    scores.save(tmp_path / "scores.npz")
    attack.load_scores(tmp_path / "scores.npz")
    whole = run(attack, folder, seed=5)
    # Of few clients FedMIA has too few others to compare with.
    assert scores.arrays.keys() <= whole.arrays.keys()
    assert scores.arrays.keys() == whole.arrays.keys() or kind == "clients"
    if "rounds" in scores.facts and kind == "rounds" and isinstance(scores.facts["rounds"], list):
        assert scores.facts["rounds"] == [number for number in whole.facts["rounds"] if number % 2]
    if judge_of(attack.name) is not None and (folder / "truth").exists():
        scores.save(tmp_path / "thin" / "scores" / f"{attack.name}.npz")
        evidence = open_runs(RunFolder(tmp_path / "thin"))
        assert judge_attacks(evidence, setting={}, provenance={})
        assert any("does not hold all that the server saw" in note for note in notes_of(evidence))


@pytest.mark.slow
def test_what_the_judge_lists_gives_the_headline_again(case, tmp_path):
    attack, folder = case
    if judge_of(attack.name) is None:
        pytest.skip("a baseline of other attacks")
    if not (folder / "truth").exists():
        pytest.skip("a world without a truth; the judge's own tests count its tables again")
    for name in ("record", "knowledge", "truth"):
        shutil.copytree(folder / name, tmp_path / name)
    run(attack, tmp_path).save(tmp_path / "scores" / f"{attack.name}.npz")
    listings = []
    findings = judge_attacks(open_runs(RunFolder(tmp_path)), setting={}, provenance={}, listings=listings)
    assert "clients" in {listing.name for listing in listings} or attack.name == "inversion"

    tables = tables_of(listings, tmp_path)
    (headline,) = (finding for finding in findings if finding.headline)
    recount = CONTRACTS[threat_of(attack.name).name].headline
    assert recount(tables) == (pytest.approx(headline.value), headline.n)
    clients = set(open_runs(RunFolder(tmp_path))[0].truth.clients) | {"all clients"}
    for key in ("client", "client asked"):
        assert {row[key] for rows in tables.values() for row in rows if key in row} <= clients


def test_scores_survive_the_disk(case, tmp_path):
    attack, folder = case
    scores = run(attack, folder)
    scores.save(tmp_path / "s.npz")
    again = Scores.load(tmp_path / "s.npz")
    assert (again.attack, dict(again.facts), again.notes) == (scores.attack, dict(scores.facts), scores.notes)
    for name, array in scores.arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)
    (tmp_path / "s.npz").write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"cannot be read as an \.npz"):
        Scores.load(tmp_path / "s.npz")


def test_scores_of_another_attack_are_refused(tmp_path):
    scores = Scores("sia", {"losses": np.zeros(1)}, {})
    scores.save(tmp_path / "prolin.npz")
    with pytest.raises(DataError, match="holds scores of 'sia', not of prolin"):
        ATTACKS["prolin"].load_scores(tmp_path / "prolin.npz")


@pytest.mark.slow
def test_300_rounds_are_streamed(tmp_path):
    """Memory of Python and NumPy stays below three rounds' worth of arrays plus the model, whatever the rounds."""
    from tests.worlds.federation import MODEL

    wide = type(MODEL)(**{**vars(MODEL), "hidden": 4_000})
    state = {name: value.numpy() for name, value in wide.build().state_dict().items()}
    size = sum(array.nbytes for array in state.values())
    writer = RecordWriter(tmp_path / "record")
    clients = 3
    for number in range(1, 301):
        shifted = [{name: array + np.float32(client) for name, array in state.items()} for client in range(clients)]
        writer.write(Exchange(number, None, [Reply(str(c), "ok", arrays, 5) for c, arrays in enumerate(shifted)]))
    writer.close()
    known = read_knowledge(write_run(tmp_path / "other") / "knowledge")
    knowledge = Knowledge(model=wide, targets=type(known.targets)(known.targets.x[:5], known.targets.y[:5]))
    ATTACKS["sia"].run(Record(tmp_path / "record"), knowledge, device="cpu")  # imports and caches
    tracemalloc.start()
    ATTACKS["sia"].run(Record(tmp_path / "record"), knowledge, device="cpu")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * clients * size + size
