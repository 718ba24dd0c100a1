"""Chapter 5: somebody is impatient. Lifting a gate by hand takes a right that ordinary users don't have."""

from demo import work
from demo.stage import Stage, gated, on_nodes
from startgate.model import names
from startgate.model.gang import Gang, Phase


async def play(stage: Stage) -> None:
    """Leaves the notebook on one GPU, and a gang that waits for it: something to try out with KEEP=1."""
    screen = stage.screen
    screen.chapter(5, "No way past the gate")
    screen.say(
        f"""The nodes have one GPU each again, {len(work.NODES)} together. The other team's notebook is back on one of
        them, so three are free, and Eve's next Job, which needs {work.WORKERS}, waits. She may edit everything in her
        namespace."""
    )
    await stage.apply(work.notebook(), admin=True)
    await stage.until("the notebook to run", lambda: _notebook_runs(stage))
    await stage.apply(work.job("impatient", queue=work.QUEUE))
    await stage.until("the Gang to wait", lambda: _waits(stage))
    pod = (await stage.read_pods("impatient"))[0].metadata.name
    _, may = await stage.kubectl("auth", "can-i", "patch", "pods", "-n", work.EVAL)
    screen.command(f"kubectl auth can-i patch pods -n {work.EVAL}", may, user=work.USER)
    patch = '[{"op": "remove", "path": "/spec/schedulingGates"}]'
    status, said = await stage.kubectl("patch", "pod", pod, "-n", work.EVAL, "--type=json", f"--patch={patch}")
    screen.command(f"kubectl patch pod {pod} -n {work.EVAL} --type=json --patch='{patch}'", said, user=work.USER)
    pods = await stage.read_pods("impatient")
    stage.claim(
        "an ordinary user who may patch pods can't lift the gate: the API server itself refuses, and says why",
        may == "yes" and status != 0 and "denied request" in said and f"gate {names.GATE}" in said,
        f"kubectl ended with status {status}; the answer names the gate and who may lift it",
    )
    stage.claim(
        "the gate is still there, on all four pods",
        len(pods) == 4 and all(map(gated, pods)) and not on_nodes(pods),
        f"{sum(map(gated, pods))} of {len(pods)} pods have the gate",
    )


async def _waits(stage: Stage) -> Gang | None:
    gang = await stage.gang("impatient")
    return gang if gang and gang.status.phase is Phase.WAITING and gang.status.counts.gated == 4 else None


async def _notebook_runs(stage: Stage) -> bool:
    return bool(on_nodes(await stage.read_pods("notebook", work.OTHERS)))
