"""What other pods, ports and volumes have to do with a pod: as kube-scheduler would read it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from startgate.model import names, objects
from startgate.model.selectors import LabelSelector, Requirement
from startgate.model.shape import Ephemeral, HostPort, PodTerm, Shape, Spread, shape_of

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PORT = {"containerPort": 80}
LABELS = {"app": "train", "tier": "a", names.JOB_INDEX: "3"}


def shape(spec: dict[str, Any], labels: dict[str, str] | None = None) -> Shape:
    return shape_of(msgspec.convert(spec, objects.PodSpec), namespace="eval", labels=labels or {})


def together(*terms: dict[str, Any], **labels: str) -> tuple[PodTerm, ...]:
    return shape({"affinity": {"podAffinity": {REQUIRED: list(terms)}}}, labels).together


def apart(*terms: dict[str, Any], **labels: str) -> tuple[PodTerm, ...]:
    return shape({"affinity": {"podAntiAffinity": {REQUIRED: list(terms)}}}, labels).apart


def spread(*constraints: dict[str, Any], **labels: str) -> tuple[Spread, ...]:
    whole = [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", **each} for each in constraints
    ]
    return shape({"topologySpreadConstraints": whole}, labels).spread


def match(**labels: str) -> LabelSelector:
    return LabelSelector(match_labels=labels)


# --- host ports -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"containers": [{"ports": [{**PORT, "hostPort": 8080}]}]}, [HostPort(8080)]),
        ({"containers": [{"ports": [PORT]}]}, []),
        ({"containers": [{"ports": [PORT]}], "hostNetwork": True}, [HostPort(80)]),
        ({"containers": [{"ports": [{**PORT, "hostPort": 80}]}], "hostNetwork": True}, [HostPort(80)]),
        ({"containers": [{}], "hostNetwork": True}, []),
        ({"initContainers": [{"ports": [{**PORT, "hostPort": 80}]}]}, []),  # gone before the others start
        ({"initContainers": [{"ports": [{**PORT, "hostPort": 80}], "restartPolicy": "Always"}]}, [HostPort(80)]),
        (
            {"containers": [{"ports": [{"hostPort": 90, "protocol": "UDP", "hostIP": "10.0.0.1"}, {"hostPort": 7}]}]},
            [HostPort(7), HostPort(90, "UDP", "10.0.0.1")],
        ),
        ({"containers": [{"ports": [{"hostPort": 7, "hostIP": "0.0.0.0"}, {"hostPort": 7}]}]}, [HostPort(7)]),
    ],
)
def test_host_ports(spec: dict[str, Any], found: list[HostPort]) -> None:
    made = shape(spec)
    assert made.ports == tuple(found)
    assert made.constrained == bool(found)


# --- other pods -------------------------------------------------------------------------------------------------


def test_a_term_is_about_the_pods_own_namespace_unless_it_says_so() -> None:
    plain = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}}
    assert together(plain) == (PodTerm("zone", match(app="db"), ("eval",)),)
    assert apart(plain) == together(plain)
    assert together({**plain, "namespaces": ["b", "a", "b"]})[0].namespaces == ("a", "b")
    anywhere = together({**plain, "namespaceSelector": {}})[0]
    assert (anywhere.namespaces, anywhere.namespace_selector) == ((), LabelSelector())
    both = together({**plain, "namespaces": ["a"], "namespaceSelector": {"matchLabels": {"team": "x"}}})[0]
    assert (both.namespaces, both.namespace_selector) == (("a",), match(team="x"))


def test_whom_a_term_picks() -> None:
    namespaces = {"a": {"team": "x"}, "b": {}}
    term = together(
        {
            "topologyKey": "z",
            "labelSelector": {},
            "namespaces": ["c"],
            "namespaceSelector": {"matchLabels": {"team": "x"}},
        }
    )[0]
    assert [name for name in ("a", "b", "c", "d") if term.picks(name, {}, namespaces)] == ["a", "c"]
    assert not together({"topologyKey": "z", "namespaces": ["a"]})[0].picks("a", {}, namespaces)  # no selector: nobody


def test_preferred_terms_are_wishes() -> None:
    wish = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": {"topologyKey": "a"}}]}
    assert not shape({"affinity": {"podAffinity": wish, "podAntiAffinity": wish}}).constrained


def test_match_label_keys_are_in_the_selector() -> None:
    term = {
        "topologyKey": "zone",
        "labelSelector": {"matchLabels": {"x": "y"}},
        "matchLabelKeys": ["app", "absent"],
        "mismatchLabelKeys": ["tier"],
    }
    merged = LabelSelector({"x": "y"}, (Requirement("app", "In", ("train",)), Requirement("tier", "NotIn", ("a",))))
    assert together(term, app="train", tier="a")[0].selector == merged
    assert spread({**term, "mismatchLabelKeys": None}, app="train")[0].selector == LabelSelector(
        {"x": "y"}, (Requirement("app", "In", ("train",)),)
    )
    assert together({**term, "labelSelector": None}, app="train")[0].selector is None


@given(st.dictionaries(st.sampled_from("abcd"), st.sampled_from("xy")), st.lists(st.sampled_from("abcd"), unique=True))
def test_a_pod_from_a_template_has_the_terms_of_the_template(labels: dict[str, str], keys: list[str]) -> None:
    """The API server merges (mis)matchLabelKeys into a pod's selectors; into a template's it doesn't."""
    match_keys, mismatch_keys = keys[::2], keys[1::2]
    written = {"topologyKey": "z", "matchLabelKeys": match_keys, "mismatchLabelKeys": mismatch_keys}
    stored = [{"key": key, "operator": "In", "values": [labels[key]]} for key in match_keys if key in labels]
    stored += [{"key": key, "operator": "NotIn", "values": [labels[key]]} for key in mismatch_keys if key in labels]
    template = together({**written, "labelSelector": {"matchLabels": {"e": "f"}}}, **labels)
    pod = together({**written, "labelSelector": {"matchLabels": {"e": "f"}, "matchExpressions": stored}}, **labels)
    assert template == pod


def test_spread_has_its_defaults() -> None:
    assert spread({"labelSelector": {"matchLabels": {"app": "a"}}}) == (Spread("zone", 1, match(app="a")),)
    made = spread({"maxSkew": 3, "minDomains": 2, "nodeAffinityPolicy": "Ignore", "nodeTaintsPolicy": "Honor"})
    assert made == (Spread("zone", 3, None, min_domains=2, honors_affinity=False, honors_taints=True),)
    explicit = spread({"nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Ignore"})
    assert explicit == spread({})
    assert spread({"whenUnsatisfiable": "ScheduleAnyway"}) == ()


# --- volumes ----------------------------------------------------------------------------------------------------


def test_volumes() -> None:
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "1Gi"}},
        "volumeMode": "Block",
        "selector": {"matchLabels": {"a": "b"}},
    }
    made = shape(
        {
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "again", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
                {"name": "code", "persistentVolumeClaim": {"claimName": "code"}},
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": claim}}},
                {"name": "more", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                {"name": "x", "emptyDir": {}},
                {"name": "y", "configMap": {"name": "a"}},
            ]
        }
    )
    assert made.claims == ("code", "data")
    scratch = Ephemeral("fast", ("ReadWriteOnce",), request=1 << 30, block=True, selector=match(a="b"))
    assert made.ephemeral == (scratch, Ephemeral())
    assert made.unchecked == ()


# --- what is not followed ---------------------------------------------------------------------------------------


def by_index(field: str) -> dict[str, Any]:
    return {
        "affinity": {
            field: {REQUIRED: [{"topologyKey": "a", "labelSelector": {"matchLabels": {names.JOB_INDEX: "0"}}}]}
        }
    }


INDEX = "a selector on the completion index"


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ({"resourceClaims": [{"name": "a"}]}, ["resource claims (DRA)"]),
        (
            {"containers": [{"resources": {"requests": {"deviceclass.resource.kubernetes.io/gpu": "1"}}}]},
            ["resource claims (DRA)"],
        ),
        ({"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}, []),
        ({"schedulingGroup": {"podGroupName": "a"}}, ["a scheduling group"]),
        *(
            ({"volumes": [{source: {}}]}, ["disks that the pods name without a claim"])
            for source in ("awsElasticBlockStore", "azureDisk", "cinder", "gcePersistentDisk", "iscsi", "rbd")
        ),
        ({"volumes": [{"nfs": {"server": "a"}}, {"csi": {"driver": "a"}}, {"hostPath": {}}]}, []),
        (by_index("podAffinity"), [INDEX]),
        (by_index("podAntiAffinity"), [INDEX]),
        (
            {
                "topologySpreadConstraints": [
                    {"whenUnsatisfiable": "DoNotSchedule", "matchLabelKeys": [names.JOB_INDEX]}
                ]
            },
            [INDEX],
        ),
        (
            {
                "topologySpreadConstraints": [
                    {"whenUnsatisfiable": "ScheduleAnyway", "matchLabelKeys": [names.JOB_INDEX]}
                ]
            },
            [],
        ),
        (
            {"containers": [{"restartPolicyRules": [{"action": "RestartAllContainers"}]}]},
            ["a restart of all containers (RestartAllContainers)"],
        ),
        ({"containers": [{"restartPolicyRules": [{"action": "Restart"}]}]}, []),
        (
            {"resourceClaims": [{"name": "a"}], "schedulingGroup": {"podGroupName": "a"}},
            ["a scheduling group", "resource claims (DRA)"],
        ),
    ],
)
def test_says_what_the_engine_does_not_check(spec: dict[str, Any], found: list[str]) -> None:
    assert shape(spec).unchecked == tuple(found)


# --- who shares a shape -----------------------------------------------------------------------------------------


def test_labels_and_namespace_are_part_of_it_but_for_the_completion_index() -> None:
    made = shape({}, LABELS)
    assert dict(made.label_map) == {"app": "train", "tier": "a"}
    assert made is shape({}, {**LABELS, names.JOB_INDEX: "4"})
    assert made is not shape({}, {**LABELS, "app": "serve"})
    assert made is not shape_of(objects.PodSpec(), namespace="other", labels=LABELS)


def test_the_plain_part_is_shared_by_all_that_the_node_alone_tells_apart() -> None:
    one = shape({"containers": [{"ports": [{"hostPort": 80}]}]}, {"app": "a"})
    two = shape({"volumes": [{"persistentVolumeClaim": {"claimName": "x"}}]}, {"app": "b"})
    assert one.plain is two.plain
    assert not one.plain.constrained
    assert one.plain.plain is one.plain
