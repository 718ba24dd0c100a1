"""Release: a gang starts whole or not at all, and for few writes."""

from __future__ import annotations

from startgate.model.gang import Phase
from startgate.model.reasons import Code
from tests.behaviour.kit import Field, nodes


async def test_a_gang_that_fits_starts_whole(field: Field) -> None:
    """All four pods of a labelled Job pass and are bound, after the admission stands in the Gang."""
    await field.nodes(*nodes(2))
    queue = await field.queue()
    await field.run("a", pods=4, cpu="2", queue=queue)
    await field.runs("a", 4)
    opened = field.opened("a")
    assert len(opened) == 4
    records = [
        int(change.new.metadata.resource_version)
        for change in field.gang_changes
        if change.new is not None and change.new.status.admission
    ]
    assert min(records) < min(opened.values()), "the record comes before the first gate"


async def test_three_of_four_fit_and_none_starts(field: Field) -> None:
    """The fourth place comes free: all four start together."""
    await field.nodes(*nodes(4, cpu="2"))
    queue = await field.queue()
    await field.pod("outsider", cpu="2")
    await field.until(lambda: len(field.bound()) == 1, "the outsider is bound")
    await field.submit("a", pods=4, cpu="2", queue=queue)
    gang = await field.waits("a", Code.NO_ROOM)
    assert "3 of 4 pods fit now" in gang.status.message
    await field.delete_pod(field.pods()[0])
    await field.phase("a", Phase.RUNNING)
    await field.runs("a", 4)
