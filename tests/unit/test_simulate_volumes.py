"""kubectl gang simulate: pods with volumes, and what would be done to a claim as soon as it is written."""

from __future__ import annotations

import pytest

from tests.unit.simulation import (
    Object,
    claim,
    events,
    job,
    node,
    noted,
    on_node,
    queue,
    starts,
    storage_class,
    story,
    template,
)


def user(name: str, *claims: str, pods: int = 1) -> Object:
    """A Job whose pods have these claims."""
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    return job(name, pods, spec={"template": template(volumes=volumes)})


def in_zone(name: str, zone: str) -> Object:
    made = node(name)
    made["metadata"]["labels"] = {"zone": zone}
    return made


def only(zone: str) -> list[Object]:
    return [{"matchLabelExpressions": [{"key": "zone", "values": [zone]}]}]


def test_pods_go_where_volumes_can_be_made() -> None:
    slow = storage_class("slow", allowedTopologies=only("b"))
    found = story(in_zone("n1", "a"), in_zone("n2", "b"), queue(), slow, claim("data", of="slow"), user("a", "data"))
    assert events(found, "a")[0].pods == {"a-0": "n2"}


def test_a_claim_that_names_no_namespace_is_in_the_default_one() -> None:
    plain = claim("data", of="slow")
    del plain["metadata"]["namespace"]
    assert starts(story(node(), queue(), storage_class("slow"), plain, user("a", "data"))) == [(0, "a")]


@pytest.mark.parametrize(
    "default", [storage_class("slow", default=True), storage_class("now", waits=False, default=True)]
)
def test_a_claim_that_names_no_class_gets_the_default_one(default: Object) -> None:
    assert starts(story(node(), queue(), default, claim("data"), user("a", "data"))) == [(0, "a")]


def test_without_a_default_class_nobody_makes_its_volume() -> None:
    found = story(node(), queue(), storage_class("now", waits=False), claim("data"), user("a", "data"), until=60)
    assert starts(found) == []


def test_a_gang_waits_for_its_claim() -> None:
    late = claim("data", of="now")
    late["metadata"]["annotations"] = noted({"at": "10s"})
    found = story(node(), queue(), storage_class("now", waits=False), late, user("a", "data"))
    assert starts(found) == [(10, "a")]


def test_a_claim_out_of_a_cluster_is_as_it_was_there() -> None:
    pending = claim("data", of="now")
    pending["metadata"]["resourceVersion"] = "7"
    found = story(node(), queue(), storage_class("now", waits=False), pending, user("a", "data"), until=60)
    assert starts(found) == []


def test_a_node_attaches_only_so_many() -> None:
    claims = [claim(f"c{number}", of="now") for number in range(3)]
    found = story(
        node("n1"),
        node("n2"),
        on_node("n1", disks=1),
        on_node("n2", disks=2),
        queue(),
        storage_class("now", waits=False),
        *claims,
        user("a", "c0", "c1"),
        user("b", "c2"),
    )
    assert [events(found, name)[0].pods for name in ("a", "b")] == [{"a-0": "n2"}, {"b-0": "n1"}]


def test_what_cannot_be_checked_waits_and_says_so() -> None:
    spec = template(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "gpu"}])
    found = story(node(), queue(), job("a", spec={"template": spec}), until=60)
    (waits,) = events(found, "a")
    assert (waits.event, waits.reason) == ("Waiting", "CannotCheck")
    assert waits.message.startswith("asks for resource claims (DRA), which Startgate does not check yet")
