"""Chapter 3: four gangs at once. Each gets a part of the nodes and waits for the rest, which another one has."""

import asyncio
from typing import Final

from demo import work
from demo.ranks import Passage, Timeline, followed
from demo.stage import Stage, StoryError, on_nodes

TEAMS: Final = ("red", "green", "blue", "gold")
SIZES: Final = dict.fromkeys(TEAMS, work.WORKERS)
WORKS: Final = 1.5
"""Seconds from a gang's being whole to its end."""
STANDS: Final = 5.0
"""Seconds that we look on: more than three times what a whole gang would need."""
TRIES: Final = 5
"""It is chance which pods come first; one gang may get all."""
TOGETHER: Final = 3.0
"""Seconds within which a gang has to be whole on its nodes once its first pod is there."""


async def play(stage: Stage) -> None:
    """Leaves all four GPUs free."""
    stage.screen.chapter(3, "Gangs that lock one another out, and the same gangs one after the other")
    stage.screen.say(
        f"""Now all four GPUs are free, and four such Jobs come in the same moment: {", ".join(TEAMS)}. Each needs all
        four GPUs for {WORKS} s; its workers wait for one another, then work, then end. First without the label:"""
    )
    await _without(stage)
    stage.screen.say(f"The same four Jobs, with the label startgate.dev/queue: {work.QUEUE}:")
    await _with(stage)


async def _without(stage: Stage) -> None:
    for _ in range(TRIES):
        async with followed(stage, SIZES, works=WORKS) as timeline:
            await stage.submit_at_once(*(work.job(name) for name in TEAMS))
            await stage.see("all GPUs to be taken", lambda: sum(_count(stage, name) for name in TEAMS) == 4)
            if not _one_whole(timeline):
                await asyncio.sleep(STANDS)
            if _one_whole(timeline):
                stage.screen.note("By chance one of them got all four GPUs. Once more.")
                await stage.delete_jobs(*TEAMS)
                continue
        await _show(stage)
        held = {name: on_nodes(await stage.read_pods(name)) for name in TEAMS}
        parts = [len(nodes) for nodes in held.values()]
        stage.claim(
            "under kube-scheduler alone the four lock one another out: every GPU is held, no gang is whole",
            sum(parts) == 4 and max(parts) < work.WORKERS,
            f"{', '.join(f'{name} has {len(nodes)} of 4' for name, nodes in held.items())}; {STANDS:.0f} s on, "
            "none has started to work, so none will ever end",
        )
        await stage.delete_jobs(*TEAMS)
        stage.screen.note("Somebody has to find out, and delete them.")
        return
    raise StoryError(f"kube-scheduler gave one gang all four GPUs, {TRIES} times: no deadlock to be shown")


async def _with(stage: Stage) -> None:
    async with followed(stage, SIZES, works=WORKS) as timeline:
        await stage.submit_at_once(*(work.job(name, queue=work.QUEUE) for name in TEAMS))
        await stage.until("the four Jobs to complete", lambda: _all_complete(stage))
    order = sorted(TEAMS, key=lambda name: timeline.gangs[name].first or 0.0)
    stage.screen.table(
        ("GANG", "FIRST POD ON A NODE", "WHOLE", "ENDED", "NODES"),
        [(name, *_times(timeline.gangs[name])) for name in order],
    )
    passages = timeline.gangs.values()
    stage.claim(
        "with the label they run one after the other, each on all four nodes, and all four complete",
        await _all_complete(stage) and all(len(set(passage.nodes.values())) == 4 for passage in passages),
        f"{' then '.join(order)}; condition Complete is True on all four Jobs",
    )
    slowest = max(passage.gathering for passage in passages)
    stage.claim(
        "no two gangs were ever on nodes at once, and none was there in part",
        timeline.most_at_once == 1 and all(0 <= passage.gathering < TOGETHER for passage in passages),
        f"at most {timeline.most_at_once} gang on nodes at any event of the watch; from a gang's first pod on a node "
        f"to its last: {slowest:.2f} s at most",
    )


async def _show(stage: Stage) -> None:
    rows = []
    for name in TEAMS:
        nodes = on_nodes(await stage.read_pods(name))
        rows.append((name, f"{len(nodes)} of 4", ", ".join(sorted(nodes)) or "-"))
    stage.screen.table(("GANG", "ON NODES", "WHICH"), rows)


def _times(passage: Passage) -> tuple[str, str, str, str]:
    moments = (passage.first, passage.whole, passage.ended)
    first, whole, ended = ("-" if at is None else f"{at:5.2f} s" for at in moments)
    return first, whole, ended, ", ".join(sorted(set(passage.nodes.values())))


def _one_whole(timeline: Timeline) -> bool:
    return any(passage.whole is not None for passage in timeline.gangs.values())


def _count(stage: Stage, name: str) -> int:
    return sum(pod.bound and not pod.ended for pod in stage.pods(name))


async def _all_complete(stage: Stage) -> bool:
    for name in TEAMS:
        job = await stage.job(name)
        if not any(each.type == "Complete" and each.status == "True" for each in job.status.conditions):
            return False
    return True
