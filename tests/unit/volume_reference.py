"""kube-scheduler's volume plugins, one pod and one node at a time: what the engine's answers are compared with.

Written from the sources of 1.37 (plugins volumebinding, volumezone, volumerestrictions for claims, nodevolumelimits;
component-helpers' storage/volume) over objects as the API server writes them. Around it the rest of a cluster that is
as unkind as it may be: of volumes that suit alike any is taken, and a driver makes volumes that no more nodes can use
than it says.
"""

import random
from copy import deepcopy
from typing import Any

Json = dict[str, Any]

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
BOUND = "pv.kubernetes.io/bind-completed"
SELECTED = "volume.kubernetes.io/selected-node"


class RefusedError(Exception):
    """kube-scheduler doesn't put this pod there."""


class Reference:
    """Objects by name (claims by namespace and name); pods with the node that they are on."""

    def __init__(self, choice: random.Random) -> None:
        self.nodes: dict[str, dict[str, str]] = {}
        self.volumes: dict[str, Json] = {}
        self.claims: dict[tuple[str, str], Json] = {}
        self.classes: dict[str, Json] = {}
        self.on_node: dict[str, Json] = {}
        self.drivers: dict[str, Json] = {}
        self.capacities: dict[str, Json] = {}
        self.attachments: dict[str, Json] = {}
        self.pods: list[tuple[Json, str]] = []
        self.choice = choice

    def copy(self) -> "Reference":
        return deepcopy(self)

    def accepts(self, pod: Json, node: str) -> bool:
        """Whether the pod, with its ephemeral volumes' claims, passes there."""
        try:
            self.copy().place(pod, node)
        except RefusedError:
            return False
        return True

    def place(self, pod: Json, node: str) -> None:
        """Puts it there, with all that follows for its claims; RefusedError: changes nothing that matters."""
        for claim in pod["own"]:
            self.claims.setdefault((pod["namespace"], claim["metadata"]["name"]), deepcopy(claim))
        names = [*pod["claims"], *(claim["metadata"]["name"] for claim in pod["own"])]
        claims = [self.claim(pod["namespace"], name) for name in names]
        self.restrictions(pod)
        self.zones([self.claim(pod["namespace"], name) for name in pod["claims"]], node)
        static, made = self.binding(claims, node)
        self.limits(pod, node)
        for claim, volume in static:
            self.bind(claim, volume)
        for claim in made:
            self.provision(claim, node)
        self.pods.append((pod, node))

    def claim(self, namespace: str, name: str) -> Json:
        claim = self.claims.get((namespace, name))
        if claim is None:
            raise RefusedError("missing")
        if claim["status"]["phase"] == "Lost" or claim["metadata"].get("deletionTimestamp"):
            raise RefusedError("lost or being deleted")
        return claim

    def restrictions(self, pod: Json) -> None:
        for name in pod["claims"]:
            claim = self.claims[pod["namespace"], name]
            if "ReadWriteOncePod" in claim["spec"]["accessModes"] and any(
                other["namespace"] == pod["namespace"] and name in other["claims"] for other, _ in self.pods
            ):
                raise RefusedError("ReadWriteOncePod")

    def zones(self, claims: list[Json], node: str) -> None:
        labels = self.nodes[node]
        for claim in claims:
            if not claim["spec"].get("volumeName"):
                made = self.classes.get(claim["spec"].get("storageClassName") or "")
                if made is None or made["volumeBindingMode"] != "WaitForFirstConsumer":
                    raise RefusedError("no volume, and none to come")
                continue
            volume = self.volumes.get(claim["spec"]["volumeName"])
            if volume is None:
                raise RefusedError("volume missing")
            if not any(key in labels for key in (ZONE, REGION, BETA_ZONE)):
                continue
            for key in (BETA_ZONE, ZONE, REGION):
                if key not in volume["metadata"]["labels"]:
                    continue
                values = [value.strip() for value in volume["metadata"]["labels"][key].split("__")]
                if "" in values:
                    continue
                here = labels.get(key, labels.get(ZONE if key == BETA_ZONE else key))
                if here not in values:
                    raise RefusedError("zone")

    def binding(self, claims: list[Json], node: str) -> tuple[list[tuple[Json, Json]], list[Json]]:
        delayed = []
        for claim in claims:
            made = self.classes.get(claim["spec"].get("storageClassName") or "")
            if claim["spec"].get("volumeName") and BOUND in claim["metadata"]["annotations"]:
                volume = self.volumes.get(claim["spec"]["volumeName"])
                if volume is None or not self.reaches(volume, node):
                    raise RefusedError("the volume's node affinity")
            elif made and made["volumeBindingMode"] == "WaitForFirstConsumer" and not claim["spec"].get("volumeName"):
                delayed.append(claim)
            else:
                raise RefusedError("unbound")
        static: list[tuple[Json, Json]] = []
        to_make = []
        for claim in sorted(delayed, key=lambda claim: int(claim["spec"]["resources"]["requests"]["storage"])):
            if SELECTED in claim["metadata"]["annotations"]:
                if claim["metadata"]["annotations"][SELECTED] != node:
                    raise RefusedError("selected node")
                volume = None
            else:
                volume = self.matching(claim, node, {each["metadata"]["name"] for _, each in static})
            if volume is None:
                to_make.append(claim)
            else:
                static.append((claim, volume))
        for claim in to_make:
            self.makeable(claim, node)
        return static, to_make

    def makeable(self, claim: Json, node: str) -> None:
        made = self.classes[claim["spec"]["storageClassName"]]
        if made["provisioner"] == "kubernetes.io/no-provisioner":
            raise RefusedError("no volume")
        terms = made.get("allowedTopologies") or []
        if terms and not any(self.term(term["matchLabelExpressions"], node) for term in terms):
            raise RefusedError("allowed topologies")
        if not self.has_room(made, int(claim["spec"]["resources"]["requests"]["storage"]), node):
            raise RefusedError("storage capacity")

    def has_room(self, made: Json, size: int, node: str) -> bool:
        driver = self.drivers.get(made["provisioner"])
        if driver is None or not driver["spec"].get("storageCapacity"):
            return True
        for each in self.capacities.values():
            limit = each.get("maximumVolumeSize", each.get("capacity"))
            wanted = each.get("nodeTopology")
            if (
                each["storageClassName"] == made["metadata"]["name"]
                and limit is not None
                and int(limit) >= size
                and wanted is not None
                and all(self.nodes[node].get(key) == value for key, value in wanted.get("matchLabels", {}).items())
            ):
                return True
        return False

    def matching(self, claim: Json, node: str, excluded: set[str]) -> Json | None:
        suited = [
            volume
            for name, volume in sorted(self.volumes.items())
            if name not in excluded and self.suits(claim, volume) and not volume["metadata"].get("deletionTimestamp")
        ]
        for volume in suited:
            if "claimRef" in volume["spec"]:
                return volume if self.reaches(volume, node) else None
        free = [volume for volume in suited if self.free_for(claim, volume) and self.reaches(volume, node)]
        if not free:
            return None
        smallest = min(int(volume["spec"]["capacity"]["storage"]) for volume in free)
        alike: dict[str, Json] = {}
        for volume in free:
            if int(volume["spec"]["capacity"]["storage"]) == smallest:
                alike.setdefault(str(volume["spec"].get("nodeAffinity")), volume)
        return self.choice.choice(list(alike.values()))

    def suits(self, claim: Json, volume: Json) -> bool:
        spec, theirs, meta = claim["spec"], volume["spec"], claim["metadata"]
        ref = theirs.get("claimRef")
        if ref is not None and (
            (ref["namespace"], ref["name"]) != (meta["namespace"], meta["name"])
            or ref.get("uid", "") not in ("", meta["uid"])
        ):
            return False
        return (
            theirs.get("storageClassName") == spec["storageClassName"]
            and int(theirs["capacity"]["storage"]) >= int(spec["resources"]["requests"]["storage"])
            and theirs.get("volumeMode", "Filesystem") == spec.get("volumeMode", "Filesystem")
            and theirs.get("volumeAttributesClassName", "") == spec.get("volumeAttributesClassName", "")
        )

    def free_for(self, claim: Json, volume: Json) -> bool:
        wanted = (claim["spec"].get("selector") or {}).get("matchLabels", {})
        return (
            volume["status"]["phase"] == "Available"
            and set(claim["spec"]["accessModes"]) <= set(volume["spec"]["accessModes"])
            and all(volume["metadata"]["labels"].get(key) == value for key, value in wanted.items())
        )

    def limits(self, pod: Json, node: str) -> None:
        fresh = self.attached(pod)
        here = self.on_node.get(node, {}).get("spec", {}).get("drivers", [])
        for driver in fresh.values():
            required = self.drivers.get(driver, {}).get("spec", {}).get("preventPodSchedulingIfMissing")
            if required and not any(each["name"] == driver for each in here):
                raise RefusedError("driver missing")
        limits = {each["name"]: each["allocatable"]["count"] for each in here if each.get("allocatable")}
        there: dict[str, str] = {}
        for other, where in self.pods:
            if where == node:
                there |= self.attached(other)
        count = dict.fromkeys({*there.values(), *fresh.values(), *limits}, 0)
        for driver in there.values():
            count[driver] += 1
        extra = {}
        for each in self.attachments.values():
            volume = self.volumes.get(each["spec"]["source"].get("persistentVolumeName") or "")
            if each["spec"]["nodeName"] == node and volume and volume["spec"].get("csi"):
                extra[f"{each['spec']['attacher']}/{volume['spec']['csi']['volumeHandle']}"] = each["spec"]["attacher"]
        for name, driver in extra.items():
            if name not in there:
                count[driver] = count.get(driver, 0) + 1
        for driver in set(fresh.values()):
            more = sum(each == driver for name, each in fresh.items() if name not in there)
            if more and driver in limits and count[driver] + more > limits[driver]:
                raise RefusedError("limit")

    def attached(self, pod: Json) -> dict[str, str]:
        found = {}
        for name in [*pod["claims"], *(claim["metadata"]["name"] for claim in pod["own"])]:
            claim = self.claims.get((pod["namespace"], name))
            if claim is None:
                continue
            volume = self.volumes.get(claim["spec"].get("volumeName") or "")
            if volume is not None:
                source = volume["spec"].get("csi")
                if source:
                    found[f"{source['driver']}/{source['volumeHandle']}"] = source["driver"]
            elif claim["spec"].get("storageClassName") in self.classes:
                provisioner = self.classes[claim["spec"]["storageClassName"]]["provisioner"]
                found[f"{provisioner}/claim {pod['namespace']}/{name}"] = provisioner
        return found

    def reaches(self, volume: Json, node: str) -> bool:
        affinity = volume["spec"].get("nodeAffinity")
        if affinity is None:
            return True
        return any(self.term(term["matchExpressions"], node) for term in affinity["required"]["nodeSelectorTerms"])

    def term(self, expressions: list[Json], node: str) -> bool:
        labels = self.nodes[node]
        for each in expressions:
            within = labels.get(each["key"]) in each["values"]
            if within == (each.get("operator", "In") == "NotIn"):
                return False
        return bool(expressions)

    def bind(self, claim: Json, volume: Json) -> None:
        meta = claim["metadata"]
        volume["spec"]["claimRef"] = {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
        volume["status"]["phase"] = "Bound"
        claim["spec"]["volumeName"] = volume["metadata"]["name"]
        claim["status"]["phase"] = "Bound"
        meta["annotations"][BOUND] = "yes"

    def provision(self, claim: Json, node: str) -> None:
        made = self.classes[claim["spec"]["storageClassName"]]
        name = f"pvc-{claim['metadata']['namespace']}-{claim['metadata']['name']}"
        here = self.on_node.get(node, {}).get("spec", {}).get("drivers", [])
        keys = next((each.get("topologyKeys") or [] for each in here if each["name"] == made["provisioner"]), [HOST])
        if any(key not in self.nodes[node] for key in keys):
            raise RefusedError("no volume is made for a node without the driver's labels")
        wanted = [{"key": key, "operator": "In", "values": [self.nodes[node][key]]} for key in keys]
        spec: Json = {
            "storageClassName": made["metadata"]["name"],
            "capacity": dict(claim["spec"]["resources"]["requests"]),
            "accessModes": claim["spec"]["accessModes"],
            "csi": {"driver": made["provisioner"], "volumeHandle": name},
        }
        if wanted:
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": wanted}]}}
        self.volumes[name] = {"metadata": {"name": name, "labels": {}}, "spec": spec, "status": {"phase": "Available"}}
        self.bind(claim, self.volumes[name])
