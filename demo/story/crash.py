"""Chapter 6: the controller is killed between two gates of one gang, and finds its way when it is back.

The moment is not staged: a watch sends SIGKILL as soon as it sees the first gate of the gang open. Whether other gates
were shut then is read from the API server afterwards; if not, it is tried again with another gang.
"""

import asyncio
import os
import signal
import time
from typing import Final

from demo import work
from demo.stage import Stage, StoryError, gated, on_nodes
from startgate.kube.store import Change
from startgate.model import names
from startgate.model.gang import Admission, Gang
from startgate.model.pods import Pod

TRIES: Final = 4
SETTLE: Final = 1.0
"""Seconds in which requests that were on their way when the controller died come through."""
BACK_WITHIN: Final = 60.0
SMALL: Final = {"cpu": "100m", "memory": "64Mi"}


async def play(stage: Stage) -> None:
    """Leaves the gang running."""
    screen = stage.screen
    screen.chapter(6, "kill -9 between two gates of one gang")
    screen.say(
        f"""A gang of {work.SWARM} small workers. Its gates are lifted one by one, in a fraction of a second. A watch
        looks on, and kills the controller as soon as it sees the first one open."""
    )
    for number in range(1, TRIES + 1):
        name = f"swarm-{number}"
        if await _cut_short(stage, name):
            await _mended(stage, name)
            return
        screen.note("The kill came too late: all gates were open. Once more, with another gang.")
        await _bring_back(stage)
        await stage.delete_jobs(name)
    raise StoryError(f"the controller was faster than the kill, {TRIES} times")


async def _cut_short(stage: Stage, name: str) -> bool:
    """Whether the controller was killed with some gates of this gang open and others shut."""
    controller = stage.startgate.controller
    pid, killed = controller.pid, asyncio.Event()

    def kill_at_first_open_gate(change: Change[Pod]) -> None:
        pod = change.new
        if killed.is_set() or pod is None or pod.gated or not pod.owner or pod.owner.name != name:
            return
        os.kill(pid, signal.SIGKILL)
        killed.set()

    stage.listeners.append(kill_at_first_open_gate)
    try:
        await stage.apply(work.job(name, workers=work.SWARM, queue=work.QUEUE, requests=SMALL))
        await stage.see("the first gate to open", killed.is_set)
    finally:
        stage.listeners.remove(kill_at_first_open_gate)
    await stage.cluster.stop_process(controller.name)  # it is dead; this takes note of it
    await asyncio.sleep(SETTLE)
    return any(map(gated, await stage.read_pods(name)))


async def _mended(stage: Stage, name: str) -> None:
    pods = await stage.read_pods(name)
    shut = sum(map(gated, pods))
    stage.screen.command(f"kill -9 {_name_of(stage)}", "")
    gang = await stage.gang(name)
    admission = _admission(gang)
    stage.screen.note(f"Half released: {len(pods) - shut} gates are open, {shut} are shut. Nobody is there to go on.")
    stage.claim(
        "killed between two gates of one gang; its admission was on record before the first gate opened",
        0 < shut < work.SWARM == len(pods) and admission is not None and admission.slots == work.SWARM,
        f"{len(pods) - shut} gates open, {shut} shut; Gang {names.gang_of_job(name)} has an admission of "
        f"{admission.slots if admission else 0} pods on record",
    )
    took = await _bring_back(stage)
    await stage.see("the gang to be whole", lambda: _bound(stage, name) == work.SWARM)
    gang = await stage.until("the Gang to say Running", lambda: _running(stage, name))
    pods = await stage.read_pods(name)
    after = _admission(gang)
    stage.claim(
        "after the restart the gang is whole, by the same admission",
        len(on_nodes(pods)) == work.SWARM
        and not any(map(gated, pods))
        and after is not None
        and admission is not None
        and after.id == admission.id,
        f"{len(on_nodes(pods))} of {work.SWARM} pods on nodes; the controller was ready {took:.1f} s after its start; "
        f"the Gang says {gang.status.phase}",
    )


async def _bring_back(stage: Stage) -> float:
    """Starts the controller again, as the kubelet would; seconds until it was ready."""
    began = time.monotonic()
    await stage.startgate.controller.start()
    await stage.startgate.controller.wait_ready(BACK_WITHIN)
    return time.monotonic() - began


def _name_of(stage: Stage) -> str:
    return stage.startgate.controller.name


def _admission(gang: Gang | None) -> Admission | None:
    found = gang.status.admission if gang else None
    return found if isinstance(found, Admission) else None


def _bound(stage: Stage, name: str) -> int:
    return sum(pod.bound for pod in stage.pods(name))


async def _running(stage: Stage, name: str) -> Gang | None:
    gang = await stage.gang(name)
    return gang if gang and any(c.type == "Running" and c.status == "True" for c in gang.status.conditions) else None
