"""The volumes of pods, as they come over the wire: which claims pods use, and which are made for them alone.

What always holds: as in `objects`. What the claims come to is in `storage`.
"""

from startgate.model.selectors import LabelSelector, Many
from startgate.model.wire import ObjectMeta, Presence, Resources, Wire


class PersistentVolumeClaimSpec(Wire, frozen=True):
    nullable = {"access_modes": tuple}

    access_modes: Many[str] = ()
    selector: LabelSelector | None = None
    resources: Resources = Resources()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None


class ClaimTemplate(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class EphemeralSource(Wire, frozen=True):
    volume_claim_template: ClaimTemplate | None = None


class ClaimSource(Wire, frozen=True):
    claim_name: str = ""


class Volume(Wire, frozen=True):
    """v1.Volume: the sources for which kube-scheduler has a filter (VolumeBinding, VolumeRestrictions, CSI limits)."""

    persistent_volume_claim: ClaimSource | None = None
    ephemeral: EphemeralSource | None = None
    aws_elastic_block_store: Presence | None = None
    azure_disk: Presence | None = None
    cinder: Presence | None = None
    gce_persistent_disk: Presence | None = None
    iscsi: Presence | None = None
    portworx_volume: Presence | None = None
    rbd: Presence | None = None

    @property
    def direct(self) -> bool:
        """Whether it names a disk by itself, without a claim."""
        return any(
            source is not None
            for source in (
                self.aws_elastic_block_store,
                self.azure_disk,
                self.cinder,
                self.gce_persistent_disk,
                self.iscsi,
                self.portworx_volume,
                self.rbd,
            )
        )
