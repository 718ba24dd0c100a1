"""Topology: a gang stays within one value of a node label, and kube-scheduler keeps to that."""

from __future__ import annotations

from typing import Final

from localcluster.nodes import Node
from startgate.model import names
from startgate.model.gang import Admission, Phase
from startgate.model.reasons import Code
from tests.behaviour.kit import IGNORES_DISRUPTION, Field

RACK: Final = "example.com/rack"
IN_RACK: Final = {names.TOPOLOGY: RACK}
MENDS: Final = {**IGNORES_DISRUPTION, "backoffLimit": 6}
LONG: Final = 60.0


async def two_racks(field: Field) -> None:
    """Two nodes of two cores in each; of rack r1 one core is taken."""
    held = [Node(name=f"{r}-{i}", cpu="2", gpus=0, labels={RACK: r}) for r in ("r1", "r2") for i in (1, 2)]
    await field.nodes(0, *held)
    await field.pod("outsider", cpu="1", nodeSelector={"kubernetes.io/hostname": "r1-1"})
    await field.lands("outsider")


def racks(field: Field, job: str) -> set[str]:
    return {pod.node[:2] for pod in field.bound(job)}


async def test_a_gang_starts_in_the_one_rack_that_takes_it_and_is_mended_there(field: Field) -> None:
    """Its pods get the rack into their node selectors, and so does one that replaces another, though more is free in
    the other rack."""
    await two_racks(field)
    queue = await field.queue()
    await field.run("a", queue=queue, annotations=IN_RACK, spec=MENDS)
    assert racks(field, "a") == {"r2"}
    assert {pod.shape.node_selector for pod in field.bound("a")} == {((RACK, "r2"),)}
    admission = field.sure("a").status.admission
    assert isinstance(admission, Admission)
    assert admission.node_selector == {RACK: "r2"}
    first = {pod.uid for pod in field.bound("a")}
    # The owner's word counts for the next start only.
    await field.change_job("a", {"metadata": {"annotations": {names.TOPOLOGY: None}}})
    await field.evict(field.bound("a")[0])
    await field.until(lambda: {pod.uid for pod in field.bound("a")} - first, "a replacement is bound", LONG)
    await field.runs("a", 4)
    assert racks(field, "a") == {"r2"}
    assert {pod.shape.node_selector for pod in field.bound("a")} == {((RACK, "r2"),)}


async def test_a_preferred_rack_gets_the_gang_without_binding_it(field: Field) -> None:
    """Three pods fill the three places of r1, where kube-scheduler alone would have spread them over all nodes."""
    await two_racks(field)
    queue = await field.queue()
    await field.run("a", pods=3, queue=queue, annotations={names.PREFER_TOPOLOGY: RACK})
    assert racks(field, "a") == {"r1"}
    assert {pod.shape.node_selector for pod in field.bound("a")} == {()}


async def test_a_gang_waits_for_one_rack_until_it_need_not_be_in_one(field: Field) -> None:
    """Six places are free, and in no rack more than three: it says so. Without the annotation it starts."""
    await two_racks(field)
    await field.pod("another", cpu="1", nodeSelector={"kubernetes.io/hostname": "r2-1"})
    await field.lands("another")
    queue = await field.queue()
    await field.submit("a", queue=queue, annotations=IN_RACK)
    gang = await field.waits("a", Code.NO_DOMAIN)
    assert f"no {RACK} has room for all; in {RACK}=r1, the best of 2, 3 of 4 pods fit now" in gang.status.message
    assert field.opened("a") == {}
    await field.change_job("a", {"metadata": {"annotations": {names.TOPOLOGY: None}}})
    await field.phase("a", Phase.RUNNING)
    assert racks(field, "a") == {"r1", "r2"}
