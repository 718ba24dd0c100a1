"""A what-if: what is laid over the objects of a simulation, and what is taken out of it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from startgate.engine.simulate.documents import InputError, Source
from startgate.engine.simulate.manifests import Manifest, read
from startgate.engine.simulate.overlay import overlay
from startgate.engine.simulate.report import Story
from startgate.engine.simulate.run import simulate
from tests.unit.simulation import SIMULATE, change, job, node, queue

Object = dict[str, Any]


def file(name: str, *objects: Object) -> Source:
    return Source(name, yaml.safe_dump_all(objects))


def after(base: list[Object], *files: Source) -> Story:
    return simulate(overlay(manifests(file("base.yaml", *base)), manifests(*files)))


def manifests(*files: Source) -> list[Manifest]:
    return read(files).manifests


def without(name: str, at: str = "0s") -> Object:
    metadata = {"name": name, "annotations": {f"{SIMULATE}gone": at}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}


def started(story: Story) -> list[str]:
    return [each.gang for each in story.told.events if each.event == "Released"]


BASE = [node(cpu="4"), queue(), job("a", 4, runs="5m"), job("b", 4, at="1m")]


def test_a_job_that_comes_later_can_be_taken_out() -> None:
    assert started(after(BASE)) == ["default/a", "default/b"]
    found = after(BASE, file("w.yaml", without("b")))
    assert started(found) == ["default/a"]
    assert "default/b" not in found.gangs


def test_what_is_said_of_it_later_goes_with_it() -> None:
    """A guess about how long a Job of a dump runs doesn't bring it back, nor complain that it isn't there."""
    base = [*BASE, change(job("a"), "1s", spec={"parallelism": 2})]
    assert started(after(base, file("w.yaml", without("a")))) == ["default/b"]


def test_it_can_go_in_the_middle_of_what_is_said_of_it() -> None:
    later = change(job("a"), "2m", spec={"parallelism": 2})
    earlier = change(job("a"), "1s", spec={"backoffLimit": 0})
    earlier["metadata"]["annotations"][f"{SIMULATE}gone"] = "4m"
    found = after([*BASE, earlier, later], file("w.yaml", without("a", "90s")))
    assert [(each.at, each.gang) for each in found.told.events if each.event == "Released"] == [
        (0, "default/a"),
        (90, "default/b"),
    ]


def test_what_one_file_adds_the_next_one_can_change_or_take_out() -> None:
    new, gone = file("new.yaml", job("c", 2, at="30s")), file("gone.yaml", without("c"))
    assert started(after(BASE, new)) == ["default/a", "default/c"]
    assert started(after(BASE, new, gone)) == ["default/a", "default/b"]
    fewer = file("fewer.yaml", {**without("c"), "metadata": {"name": "c"}, "spec": {"parallelism": 1}})
    assert after(BASE, new, fewer).told.final.gangs["default/c"].min_available == 1


def test_within_a_file_a_later_document_is_a_change_in_time() -> None:
    more = change(job("c"), "7m", spec={"parallelism": 3})
    found = after(BASE, file("new.yaml", job("c", 2, at="6m", spec={"completions": 9}), more))
    assert found.told.final.gangs["default/c"].min_available == 3


def test_a_job_moved_behind_its_end_is_refused() -> None:
    base = [*BASE, job("c", 1, gone="2m")]
    later = {**without("c"), "metadata": {"name": "c", "annotations": {f"{SIMULATE}at": "3m"}}}
    with pytest.raises(InputError, match=r"w.yaml.*gone before it appears"):
        after(base, file("w.yaml", later))


def test_a_name_misspelt_is_said_where_it_stands() -> None:
    with pytest.raises(InputError, match=r"w.yaml, document 1 \(Job default/x\): spec.template: missing"):
        after(BASE, file("w.yaml", without("x")))
