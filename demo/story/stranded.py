"""Chapter 1: kube-scheduler alone. It places pods one by one, so a Job that needs four gets three."""

import asyncio
from typing import Final

from demo import work
from demo.stage import Stage, on_nodes

STANDS: Final = 3.0
"""Seconds that we look on, to see that nothing comes of it."""


async def play(stage: Stage) -> None:
    """Leaves the other team's notebook on one GPU, and three GPUs free."""
    screen = stage.screen
    screen.chapter(1, "Without Startgate: three of four workers hold GPUs for nothing")
    screen.say(
        f"""The cluster has {len(work.NODES)} nodes with one GPU each. Another team's notebook is on one of them, so
        three GPUs are free. Eve, of {work.EVAL}, submits a training Job. Its 4 workers need one another: with three of
        them nothing can be computed."""
    )
    await stage.apply(work.notebook(), admin=True)
    await stage.until("the notebook to run", lambda: _notebook_runs(stage))
    job = work.job("finetune")
    said = await stage.apply(job)
    screen.command("kubectl apply -f finetune.yaml", said, user=work.USER)
    screen.manifest(work.text(job))
    await stage.see("three workers on nodes", lambda: sum(pod.bound for pod in stage.pods("finetune")) == 3)
    await stage.see(
        "kube-scheduler's word on the fourth",
        lambda: any(pod.unschedulable for pod in stage.pods("finetune") if not pod.bound),
    )
    before = {pod.uid: pod.node for pod in stage.pods("finetune")}
    await asyncio.sleep(STANDS)
    screen.say("What kube-scheduler made of it:")
    stage.show_pods("finetune")
    pods = await stage.read_pods("finetune")
    bound = on_nodes(pods)
    same = before == {pod.metadata.uid: pod.spec.node_name for pod in pods}
    stage.claim(
        "kube-scheduler alone strands three pods: they hold three GPUs, the fourth has none, none can work",
        len(bound) == 3 and len(pods) == 4 and len(set(bound)) == 3 and same,
        f"{len(bound)} of {len(pods)} pods are on nodes, and nothing changed in {STANDS:.0f} s",
    )
    await stage.delete_jobs("finetune")
    screen.note("Eve deletes the Job.")


async def _notebook_runs(stage: Stage) -> bool:
    return bool(on_nodes(await stage.read_pods("notebook", work.OTHERS)))
