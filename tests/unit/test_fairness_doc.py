"""The worked example of docs/explanation/fairness.md, read out of the page and put to the engine."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml

from startgate.engine.cycle import decide
from startgate.engine.fair import EVEN, Seat, Shares
from startgate.engine.ground import Ground
from startgate.engine.order import Turns
from startgate.engine.world import Holder, Placement, Plan, Waiting, World
from startgate.model.queue import QueueSpec
from tests.unit.worlds import GPU, cluster, gang, node, shape, stay_of, world

PAGE = (Path(__file__).parents[2] / "docs" / "explanation" / "fairness.md").read_text()
ONE = shape(gpu=1)
NOBODY = frozenset({"nobody"})


class Row(NamedTuple):
    """One gang of the example."""

    queue: str
    pods: int
    since: float
    node: str
    """"" if it waits."""
    priority: int = 0


def table(name: str) -> list[list[str]]:
    """The rows of the table that the page calls by this name, its cells without quotes."""
    found = re.search(rf"<!-- example: {name} -->\n\|.*\n\| ---.*\n((?:\|.*\n)+)", PAGE)
    assert found is not None, f"the page has no table {name}"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[1].splitlines()]


def bare(cell: str) -> str:
    return cell.replace("`", "")


def seconds(clock: str) -> float:
    hours, minutes = clock.split(":")
    return int(hours) * 3600.0 + int(minutes) * 60.0


def queues() -> dict[str, dict[str, Any]]:
    found = re.search(r"<!-- example: queues -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    read = yaml.safe_load(found[1])
    assert isinstance(read, dict)
    return read


def gangs() -> dict[str, Row]:
    rows = {}
    for name, queue, pods, since, where in table("gangs"):
        rows[bare(name)] = Row(queue, int(pods), seconds(since), "" if where == "waits" else where)
    return rows


NOW = seconds("10:00")
NODES, EACH = ("n1", "n2", "n3", "n4"), 8


def world_of(specs: Mapping[str, Any], rows: Mapping[str, Row]) -> World:
    """The world of the example; Waiting for those without a node."""
    nodes = cluster(*(node(name, gpu=str(EACH)) for name in NODES))
    used: dict[str, dict[str, int]] = {}
    holders, waiting = [], []
    for name, row in rows.items():
        if not row.node:
            waiting.append(gang(name, row.queue, (row.pods, ONE), since=row.since, priority=row.priority))
            continue
        books = used.setdefault(row.queue, {GPU: 0, "pods": 0})
        for pod in range(row.pods):
            nodes.add_pod(f"{name}-{pod}", row.node, ONE, ours=True)
            for resource in books:
                books[resource] += 1
        holders.append(_holder(name, row))
    made = world(nodes, {name: msgspec.convert(spec, QueueSpec) for name, spec in specs.items()}, waiting, used=used)
    return msgspec.structs.replace(made, holders=tuple(holders))


def _holder(name: str, row: Row) -> Holder:
    return Holder(
        gang=f"ns/{name}",
        queue=row.queue,
        priority=row.priority,
        since=row.since,
        charge={GPU: row.pods, "pods": row.pods},
        pods=(Placement(ONE, ((row.node, row.pods),)),),
        takeable=True,
    )


def share(value: float | None) -> str:
    assert value is not None
    return f"{value:.2f}"


def amount(count: int) -> str:
    return str(count) if count else "-"


def victims(plan: Plan, claimant: str) -> frozenset[str]:
    """Who gives way for this one."""
    found = {each.gang.removeprefix("ns/") for each in plan.evict if each.claimant == f"ns/{claimant}"}
    return frozenset(found) or NOBODY


def turns(ground: Ground, waiting: Sequence[Waiting]) -> list[str]:
    given = Turns(ground.shares, waiting)
    order = []
    while (each := given.pop()) is not None:
        order.append(each.gang.removeprefix("ns/"))
    return order


def test_the_cluster_is_full_as_the_page_says() -> None:
    on: dict[str, int] = dict.fromkeys(NODES, 0)
    for row in gangs().values():
        if row.node:
            on[row.node] += row.pods
    assert on == dict.fromkeys(NODES, EACH)
    assert f"share {len(NODES) * EACH} GPUs" in PAGE
    assert f"Four nodes of {EACH} GPUs each" in PAGE


def test_what_each_queue_deserves_and_its_share() -> None:
    ground = Ground(world_of(queues(), gangs()))
    found = []
    for name in queues():
        seat = _whole(ground.shares, name)
        numbers = [amount(each.get(GPU, 0)) for each in (seat.floor, seat.deserved, seat.use)]
        found.append([name, *numbers, share(seat.share() / EVEN)])
    assert found == table("shares")


def test_the_figures_in_the_sentences() -> None:
    rows = gangs()
    shares = Ground(world_of(queues(), rows)).shares
    due = {name: seat.deserved[GPU] for name in queues() if (seat := _whole(shares, name))}
    used = {name: seat.use[GPU] for name in queues() if (seat := _whole(shares, name))}
    mine, theirs, more = shares.seat("vision"), shares.seat("speech"), {GPU: rows["train-b"].pods}
    after, before = (share(each / EVEN) for each in (shares.share(mine, more), shares.share(theirs)))
    text = " ".join(PAGE.split())
    for figures in (
        f"what remains: {len(NODES) * EACH} − {due['prod']} − {due['research']} = {due['scratch']}",  # noqa: RUF001
        f"In research {due['research']} are shared out {queues()['vision']['weight']} to "
        f"{queues()['speech']['weight']} between vision, which asks for {used['vision']} + {rows['train-b'].pods} = "
        f"{used['vision'] + rows['train-b'].pods}, and speech, which asks for the {used['speech']} that it has",
        f"`eval` would take prod to {used['prod'] + rows['eval'].pods}",
        f"`train-b` would take vision to {used['vision'] + rows['train-b'].pods}, which it deserves",
        f"research would be at {used['research'] + rows['train-b'].pods} of {due['research']}",
        f"One gang of {used['speech']} goes whole for a claimant of {rows['train-b'].pods}. It takes speech from "
        f"{used['speech']} to 0, below its {due['speech']}; allowed, since vision then has "
        f"{used['vision'] + rows['train-b'].pods} of {due['vision']} ({after}) and speech had {used['speech']} of "
        f"{due['speech']} ({before})",
    ):
        assert figures in text


def _whole(shares: Shares, queue: str) -> Seat:
    """The queue with all below it."""
    seat = shares.seat(queue)
    return seat.parent if seat.own and seat.parent else seat


def test_whose_turn_it_is_who_gives_way_and_what_is_waited_for() -> None:
    made = world_of(queues(), gangs())
    plan = decide(made, NOW)
    order = turns(Ground(made), made.waiting)
    found = []
    for number, name in enumerate(order, 1):
        lines = {str(each.rule) for each in plan.evict if each.claimant == f"ns/{name}"} or {"-"}
        code = stay_of(plan, name).reason.code
        found.append([str(number), name, ", ".join(sorted(victims(plan, name))), ", ".join(lines), str(code)])
    assert found == [[bare(cell) for cell in row] for row in table("turns")]
    assert plan.go == ()


def test_when_all_is_done_everybody_has_what_it_deserves() -> None:
    rows = gangs()
    plan = decide(world_of(queues(), rows), NOW)
    free = {rows[name].node for name in ("sweep-3", "talk-2")}
    for evict in plan.evict:
        name, claimant = evict.gang.removeprefix("ns/"), evict.claimant.removeprefix("ns/")
        rows[claimant] = rows[claimant]._replace(node=rows[name].node)
        rows[name] = rows[name]._replace(node="")
    assert {rows[name].node for name in ("eval", "train-b")} == free
    settled = decide(world_of(queues(), rows), NOW + 60)
    assert (settled.go, settled.evict) == ((), ())
    found = []
    for name in queues():
        view = settled.queues[name]
        numbers = [amount(each.get(GPU, 0)) for each in (view.deserved, view.allocated)]
        found.append([name, *numbers, share(view.share), view.next.removeprefix("ns/") or "-"])
    assert found == [[bare(cell) for cell in row] for row in table("settled")]


@pytest.mark.parametrize("row", table("changes"), ids=lambda row: bare(row[0]))
def test_if_one_thing_were_different(row: list[str]) -> None:
    change, *expected = row
    specs, rows = queues(), gangs()
    if joined := re.fullmatch(r"`(\S+)` and `(\S+)` are one gang", change):
        first, second = joined.groups()
        rows[first] = rows[first]._replace(pods=rows[first].pods + rows.pop(second).pods)
    elif raised := re.fullmatch(r"`(\S+)` has priority (\d+)", change):
        rows[raised[1]] = rows[raised[1]]._replace(priority=int(raised[2]))
    else:
        for name, fields in yaml.safe_load(bare(change)).items():
            specs[name] = {**specs[name], **fields}
    plan = decide(world_of(specs, rows), NOW)
    found = [", ".join(sorted(victims(plan, name))) for name in ("eval", "train-b", "sweep-4")]
    assert found == [bare(cell) for cell in expected]


def test_a_changed_figure_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = PAGE.replace("| prod | 4 | 8 | 4 | 0.50 |", "| prod | 4 | 8 | 4 | 0.51 |")
    assert changed != PAGE
    monkeypatch.setattr("tests.unit.test_fairness_doc.PAGE", changed)
    with pytest.raises(AssertionError):
        test_what_each_queue_deserves_and_its_share()
