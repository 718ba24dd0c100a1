"""Chapter 2: one label more. The same Job waits whole, says why, and starts whole."""

import time

from demo import work
from demo.ranks import followed
from demo.stage import Stage, gated, on_nodes
from localcluster.nodes import GPU
from startgate.model import names
from startgate.model.gang import Gang, Phase
from startgate.model.reasons import Code


async def play(stage: Stage) -> None:
    """Leaves all four GPUs free."""
    screen = stage.screen
    screen.chapter(2, "With one label: all four start together, or none does")
    queue = work.queue()
    screen.say(
        """Startgate is installed already. What an admin adds is a queue: at most 16 GPUs for this tenant, 2 always
        kept for it. (`deserved` is its fair share; what comes of it, chapter 4 shows.)"""
    )
    said = await stage.apply(queue, admin=True)
    screen.command("kubectl apply -f queue.yaml", said, user="admin")
    screen.manifest(work.text(queue))
    screen.say("Eve's Job is the same as before, with one label more.")
    job = work.job("finetune", queue=work.QUEUE)
    async with followed(stage, {"finetune": work.WORKERS}, works=2.0) as timeline:
        said = await stage.apply(job)
        screen.command("kubectl apply -f finetune.yaml", said, user=work.USER)
        top = work.text(job).split("spec:")[0] + "spec: … as before"
        screen.manifest(top, marked=names.QUEUE)
        await _waits(stage)
        freed = await _free_the_gpu(stage)
        passage = timeline.gangs["finetune"]
        await stage.see("the whole gang on nodes", lambda: passage.whole is not None)
        took = time.monotonic() - freed
        await stage.until("the Gang to say Running", lambda: _in_phase(stage, Phase.RUNNING))
        screen.say("All four have started:")
        stage.show_pods("finetune")
        pods = await stage.read_pods("finetune")
        bound = on_nodes(pods)
        gang = await stage.gang("finetune")
        stage.claim(
            "the fourth GPU came free, and all four workers started together, each on a node of its own",
            len(bound) == 4 == len(set(bound)) and not any(map(gated, pods)) and _says(gang, Phase.RUNNING),
            f"4 of 4 pods on nodes {took:.2f} s after the GPU was given up, the last {passage.gathering:.2f} s "
            f"after the first; the Gang says {gang.status.phase if gang else 'nothing'}",
        )
        done = await stage.until("the Job to complete", lambda: _completes(stage))
        stage.claim("they work, and the Job completes", done, "the Job's condition Complete is True")


async def _waits(stage: Stage) -> None:
    gang = await stage.until("the Gang to say why it waits", lambda: _waits_for_room(stage))
    stage.screen.say("Why doesn't it start? One command says so, to the user herself:")
    arguments = ("gang", "why", "job/finetune", "-n", work.EVAL)
    status, said = await stage.kubectl(*arguments)
    stage.screen.command(f"kubectl {' '.join(arguments)}", said, user=work.USER)
    pods = await stage.read_pods("finetune")
    stage.claim(
        "none of the four has started: each stands at its gate, and the three free GPUs stay free for others",
        len(pods) == 4 and all(map(gated, pods)) and not on_nodes(pods),
        f"{sum(map(gated, pods))} of {len(pods)} pods have the gate {names.GATE}, {len(on_nodes(pods))} are on nodes",
    )
    words, sentence = " ".join(said.split()), " ".join(gang.status.message.split())
    stage.claim(
        "`kubectl gang why` says what it waits for, with the numbers",
        status == 0 and sentence in words and "3 of 4" in sentence and gang.status.shortage.get(GPU) in ("1", 1),
        f"reason {gang.status.reason}, short of {gang.status.shortage.get(GPU)} {GPU}; exit status {status}",
    )


async def _free_the_gpu(stage: Stage) -> float:
    stage.screen.say("The other team closes its notebook; the fourth GPU comes free.")
    arguments = ("delete", "job", "notebook", "-n", work.OTHERS)
    began = time.monotonic()
    status, said = await stage.kubectl(*arguments, admin=True)
    stage.screen.command(f"kubectl {' '.join(arguments)}", said, user=work.OTHERS)
    assert status == 0, said
    return began


async def _waits_for_room(stage: Stage) -> Gang | None:
    gang = await stage.gang("finetune")
    return gang if gang and gang.status.reason == Code.NO_ROOM else None


async def _in_phase(stage: Stage, phase: Phase) -> bool:
    return _says(await stage.gang("finetune"), phase)


def _says(gang: Gang | None, phase: Phase) -> bool:
    return gang is not None and gang.status.phase is phase


async def _completes(stage: Stage) -> bool:
    job = await stage.job("finetune")
    return any(each.type == "Complete" and each.status == "True" for each in job.status.conditions)
