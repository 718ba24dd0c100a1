"""Chapter 4: two tenants. One borrows what the other leaves, and gives it back by whole gangs when that one comes back.

The gangs end when the story has shown what they are there for. What is claimed of them is read from the API server, or
was seen by a watch; what a change would do is asked of `kubectl gang simulate`, with a dump of the same cluster.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

import yaml

from demo import work
from demo.ranks import Timeline, end, watched
from demo.stage import Stage, StoryError, on_nodes
from localcluster.nodes import GPU
from startgate.kube.kinds import JOBS, NODES
from startgate.model.gang import Gang, Phase, Yielded
from startgate.model.queue import Queue
from startgate.model.reasons import Code

OLD: Final = ("sweep-1", "sweep-2")
YOUNG: Final = ("sweep-3", "sweep-4")
SWEEPS: Final = (*OLD, *YOUNG)
TRAINS: Final = ("train-1", "train-2")
BEYOND: Final = "train-3"
"""The gang that the other tenant's share has no room for."""
RUNS: Final = "10m"
"""What each would take; the story doesn't wait for that."""
SECOND: Final = 1.1
"""Gangs that come in the same second are of one age."""
TOGETHER: Final = 3.0
"""Seconds within which a gang has to be whole on its nodes once its first pod is there."""

ALL: Final = {**dict.fromkeys(SWEEPS, work.EVAL), **dict.fromkeys((*TRAINS, BEYOND), work.VISION)}
"""The namespace of each."""


async def play(stage: Stage) -> None:
    """Leaves all GPUs free, and as many as before."""
    stage.screen.chapter(4, "Two tenants: one borrows, the other comes back and gets its share")
    await stage.cluster.set_nodes(work.LARGER)
    with watched(stage, dict.fromkeys(ALL, work.WORKERS)) as timeline:
        await _borrows(stage)
        before = {name: await _gang(stage, name) for name in SWEEPS}
        pods = {pod.uid for name in OLD for pod in stage.pods(name)}
        await _comes_back(stage)
        await _has_its_share(stage, timeline, pods)
        await _is_told(stage, before)
        await _what_if(stage)
        await _come_again(stage, timeline)
    await stage.cluster.set_nodes(work.NODES)


async def _borrows(stage: Stage) -> None:
    screen = stage.screen
    screen.say(
        f"""The four nodes get four GPUs each, 16 together, and {work.EVAL} has to share them with {work.VISION}. The
        admin puts both tenants' queues below one parent. Eve's deserves 8 GPUs, and so does the new one:"""
    )
    queues = work.tenants()
    said = await stage.apply(*queues, admin=True)
    screen.command("kubectl apply -f tenants.yaml", said, user="admin")
    screen.manifest(work.text(queues[-1]))
    screen.say(
        f"""{work.VISION} has nothing to do. So Eve may have it all: four gangs of 4 pods with a GPU each, good for ten
        minutes of work. Two come first, two a moment later."""
    )
    for names in (OLD, YOUNG):
        await asyncio.sleep(0 if names is OLD else SECOND)
        await _submit(stage, names)
        await stage.until(f"{' and '.join(names)} to run", partial(_all_run, stage, names))
    await stage.until("the queues' books to say so", lambda: _has(stage, work.QUEUE, "16"))
    screen.say("Who has what? A share of 1 is all that a queue deserves.")
    await _show_queues(stage)
    queue = await stage.queue(work.QUEUE)
    stage.claim(
        "a tenant may use what the other leaves: all 16 GPUs, twice its share",
        _gpus(queue) == ("16", "8") and queue.status.share == "2.00",
        f"allocated {_gpus(queue)[0]}, deserved {_gpus(queue)[1]}, share {queue.status.share}",
    )


async def _comes_back(stage: Stage) -> None:
    stage.screen.say(
        f"""{work.VISION} comes back with three such gangs. Two are within its share. The third would be beyond it: it
        may run when something is left over, as Eve's did, and takes nothing from anybody."""
    )
    await _submit(stage, (*TRAINS, BEYOND))
    await stage.until(f"{' and '.join(TRAINS)} to run", lambda: _all_run(stage, TRAINS))
    for name in (*YOUNG, BEYOND):
        await stage.until(f"{name} to wait", partial(_waits, stage, name))
    await stage.until("the queues' books to say so", lambda: _has(stage, work.QUEUE, "8"))
    await _show_queues(stage)


async def _has_its_share(stage: Stage, timeline: Timeline, pods: set[str]) -> None:
    """`pods`: uids of the gangs that were to stay."""
    yielded = {name: await _yielded(stage, name) for name in ALL}
    gave_way = [name for name in ALL if yielded[name]]
    bound = {name: len(on_nodes(await stage.read_pods(name, ALL[name]))) for name in ALL}
    kept = {pod.uid for name in OLD for pod in stage.pods(name) if pod.bound}
    stage.claim(
        "the youngest two of Eve's gangs gave way, each of them whole; the other two weren't touched",
        gave_way == list(YOUNG) and not any(bound[name] for name in YOUNG) and kept == pods,
        f"gave way: {', '.join(gave_way)}, with {sum(bound[name] for name in YOUNG)} pods left on nodes; "
        f"{' and '.join(OLD)} have {len(kept & pods)} of the {len(pods)} pods that they had",
    )
    queues = {name: await stage.queue(name) for name in (work.QUEUE, work.VISION_QUEUE)}
    beyond = await _gang(stage, BEYOND)
    slowest = max(timeline.gangs[name].gathering for name in TRAINS)
    stage.claim(
        f"{work.VISION} got what it deserves and no more: two gangs, neither of them ever in part; the third waits",
        all(_gpus(queue) == ("8", "8") for queue in queues.values())
        and all(0 <= timeline.gangs[name].gathering < TOGETHER for name in TRAINS)
        and (timeline.gangs[BEYOND].first, beyond.status.reason) == (None, Code.CLUSTER_IN_USE),
        f"each queue has 8 of the 8 GPUs that it deserves; from a gang's first pod on a node to its last: "
        f"{slowest:.2f} s at most; {BEYOND}: {beyond.status.reason}",
    )


async def _is_told(stage: Stage, before: Mapping[str, Gang]) -> None:
    name = YOUNG[-1]
    stage.screen.say("What has become of Eve's Job? She asks, as ever:")
    arguments = ("gang", "why", f"job/{name}", "-n", work.EVAL)
    status, said = await stage.kubectl(*arguments)
    stage.screen.command(f"kubectl {' '.join(arguments)}", said, user=work.USER)
    words = " ".join(said.split())
    told = await _yielded(stage, name)
    since = [gang.status.since for gang in (before[name], await _gang(stage, name))]
    stage.claim(
        "`kubectl gang why` says who took the place, and by which rule; the gang has kept its age",
        status == 0
        and told is not None
        and told.message in words
        and f"{work.VISION}/job-train-" in told.message
        and "within its deserved share" in told.message
        and since[0] == since[1] != "",
        f"reason {told.reason if told else 'none'}; in the queue since {since[0]} before, since {since[1]} now",
    )
    jobs = {job.metadata.name: job for job in await stage.client.list_all(JOBS, work.EVAL)}
    failed = sum(jobs[each].status.failed for each in SWEEPS)
    stage.claim(
        "giving way counts no failure: with backoffLimit 0 one would have been the end of the Job",
        failed == 0 and all(jobs[each].spec.suspend for each in YOUNG),
        f"failed: {failed}; the Jobs of {' and '.join(YOUNG)} are suspended until their turn comes",
    )


async def _what_if(stage: Stage) -> None:
    screen = stage.screen
    screen.say(
        f"""Three gangs wait. What if {work.VISION} had 8 GPUs more? One node, and a larger share. Nothing of that is
        bought or changed: the controller's own engine goes on from a dump of the cluster. How long pods run, an
        annotation says."""
    )
    change = work.more(gpus=8, deserved=16)
    folder = stage.cluster.dir
    (folder / "more.yaml").write_text(yaml.safe_dump_all(change))
    dump = ("get", "nodes,queues,jobs,pods,gangs", "-A", "-o", "yaml")
    _, now = await stage.kubectl(*dump, admin=True)
    (folder / "now.yaml").write_text(now)
    screen.command("cat more.yaml", user="admin")
    screen.manifest("---\n".join(map(work.text, change)))
    screen.command(f"kubectl {' '.join(dump)} > now.yaml", user="admin")
    asked = ("gang", "simulate", "-f", "now.yaml", "--what-if", "more.yaml")
    (status, said), (_, document) = await asyncio.gather(
        stage.kubectl(*asked, admin=True), stage.kubectl(*asked, "-o", "json", admin=True)
    )
    screen.command(f"kubectl {' '.join(asked)}", said, user="admin")
    if status:
        raise StoryError(f"kubectl gang simulate failed: {said}")
    total, gangs = _comparison(document)
    waits = [gangs[f"{ALL[name]}/{name}"] for name in (*YOUNG, BEYOND)]
    at_once = sum(gang["after"]["waited"] == 0 for gang in waits)
    nodes = await stage.client.list_all(NODES)
    stage.claim(
        "asked what 8 GPUs more would change: two of the three would start at once, none later; nothing was done",
        at_once == 2
        and total["later"] == 0
        and all(gang["before"]["waited"] > 0 for gang in waits)
        and len(nodes) == len(work.LARGER)
        and await _has(stage, work.VISION_QUEUE, "8"),
        f"the three would wait {total['before']['waited'] / 60:.1f} minutes together as it is, "
        f"{total['after']['waited'] / 60:.1f} with the change; the cluster still has {len(nodes)} nodes",
    )


def _comparison(document: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """In sum, and by gang."""
    try:
        found = json.loads(document[max(0, document.find("{")) :])  # before it, what is said on standard error
        return found["total"], found["gangs"]
    except (ValueError, KeyError):
        raise StoryError(f"kubectl gang simulate -o json answered: {document[:200]}") from None


async def _come_again(stage: Stage, timeline: Timeline) -> None:
    screen = stage.screen
    screen.say(f"We don't wait for ten minutes: {' and '.join(TRAINS)} end now, {BEYOND} after them, and Eve's go on.")
    for name in TRAINS:
        await end(stage, name)
    await stage.until(f"{BEYOND} to run", lambda: _all_run(stage, (BEYOND,)))
    await end(stage, BEYOND)
    await stage.until("all of Eve's gangs to run", lambda: _all_run(stage, SWEEPS))
    for name in SWEEPS:
        await end(stage, name)
    await stage.until("all Jobs to complete", lambda: _all_complete(stage))
    screen.table(
        ("GANG", "TENANT", "ON NODES", "AND AGAIN"),
        [(name, ALL[name], *_stays(timeline, name)) for name in ALL],
    )
    jobs = [await stage.job(name, namespace) for name, namespace in ALL.items()]
    again = [name for name in ALL if len(timeline.passages[name]) == 2]
    stage.claim(
        "what gave way came back in its turn, and everything completed",
        again == list(YOUNG) and await _all_complete(stage) and not any(job.status.failed for job in jobs),
        f"{' and '.join(again)} started twice; condition Complete is True on {len(jobs)} of {len(ALL)} Jobs, "
        f"pods failed: {sum(job.status.failed for job in jobs)}",
    )


# --- what is submitted and looked at ----------------------------------------------------------------------------


def job(name: str) -> work.Manifest:
    """What its tenant submits."""
    queue = work.QUEUE if name in SWEEPS else work.VISION_QUEUE
    return work.job(name, namespace=ALL[name], queue=queue, requests={GPU: "1"}, runs=RUNS)


async def _submit(stage: Stage, names: Iterable[str]) -> None:
    """All of one tenant."""
    jobs = [job(name) for name in names]
    namespace = jobs[0]["metadata"]["namespace"]
    said = await stage.apply(*jobs, admin=namespace != work.EVAL)
    files = " ".join(f"-f {name}.yaml" for name in names)
    stage.screen.command(f"kubectl apply {files}", said, user=work.USER if namespace == work.EVAL else namespace)


async def _show_queues(stage: Stage) -> None:
    _, said = await stage.kubectl("gang", "queues", admin=True)
    stage.screen.command("kubectl gang queues", said, user="admin")


async def _gang(stage: Stage, name: str) -> Gang:
    gang = await stage.gang(name, ALL[name])
    if gang is None:
        raise StoryError(f"the Gang of {name} is gone")
    return gang


async def _yielded(stage: Stage, name: str) -> Yielded | None:
    said = (await _gang(stage, name)).status.yielded
    return said if isinstance(said, Yielded) else None


async def _all_run(stage: Stage, names: Iterable[str]) -> bool:
    gangs = [await stage.gang(name, ALL[name]) for name in names]
    return all(gang is not None and gang.status.phase is Phase.RUNNING for gang in gangs)


async def _waits(stage: Stage, name: str) -> bool:
    """Whether it does, with nothing on its way out any more."""
    gang = await stage.gang(name, ALL[name])
    return gang is not None and gang.status.reason == Code.CLUSTER_IN_USE and not gang.status.counts.terminating


async def _has(stage: Stage, queue: str, gpus: str) -> bool:
    return _gpus(await stage.queue(queue))[0] == gpus


def _gpus(queue: Queue) -> tuple[str, str]:
    """Allocated and deserved."""
    return str(queue.status.allocated.get(GPU, 0)), str(queue.status.deserved.get(GPU, 0))


async def _all_complete(stage: Stage) -> bool:
    jobs = [await stage.job(name, namespace) for name, namespace in ALL.items()]
    return all(any(each.type == "Complete" and each.status == "True" for each in job.status.conditions) for job in jobs)


def _stays(timeline: Timeline, name: str) -> list[str]:
    """From when to when, each time."""
    stays = [f"{each.first or 0:5.2f} to {each.ended or 0:5.2f} s" for each in timeline.passages[name]]
    return [*stays, "-"][:2]
