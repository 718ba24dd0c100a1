"""Which labels, and which nodes, a selector picks.

Kubernetes has two selectors that look alike and differ in their corners: a LabelSelector (namespaces of a
queue) and a NodeSelector (required node affinity of a pod). Both are here, as they come over the wire, so
that no other module spells out an operator. What always holds: each is frozen and hashable, `matches` is
pure, and a selector that the API server would have refused picks nothing rather than everything.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import force_setattr

T = TypeVar("T")

# Kubernetes writes null for an empty list or map at times. Decoded, it is empty: `__post_init__` sees to
# that, so no reader has to ask for None, and the type checker isn't told of it.
if TYPE_CHECKING:
    Many: TypeAlias = tuple[T, ...]
    Labels: TypeAlias = dict[str, str]
else:
    Many = tuple[T, ...] | None
    Labels = dict[str, str] | None

INTEGER: Final = re.compile(r"[+-]?[0-9]+")
INT64: Final = range(-(2**63), 2**63)


def integer(text: str) -> int | None:
    """The int64 that Go's strconv.ParseInt(text, 10, 64) reads, or None where it fails."""
    if not INTEGER.fullmatch(text) or len(text) > 4000:  # beyond that, int() itself refuses
        return None
    number = int(text)
    return number if number in INT64 else None


class Requirement(Struct, rename="camel", frozen=True, gc=False):
    """One expression: a key, an operator, values. All of a selector's expressions must hold."""

    key: str
    operator: str
    values: Many[str] = ()

    def __post_init__(self) -> None:
        if self.values is None:
            force_setattr(self, "values", ())

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it; absent labels meet NotIn and DoesNotExist (labels.Requirement.Matches).

        Gt and Lt compare integers, and are for nodes only: `LabelSelector` refuses them. What the API server
        would not have stored (an unknown operator, In without values, Exists with values) is met by nothing.
        """
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value is not None and value in self.values
            case "NotIn":
                return bool(self.values) and (value is None or value not in self.values)
            case "Exists":
                return value is not None and not self.values
            case "DoesNotExist":
                return value is None and not self.values
            case "Gt" | "Lt":
                return value is not None and self._compares(value)
        return False

    def _compares(self, value: str) -> bool:
        if len(self.values) != 1:
            return False
        have, bound = integer(value), integer(self.values[0])
        if have is None or bound is None:
            return False
        return have > bound if self.operator == "Gt" else have < bound


class LabelSelector(Struct, rename="camel", frozen=True, gc=False):
    """metav1.LabelSelector. An empty one picks everything; a missing one is the caller's affair (None)."""

    match_labels: Labels = {}
    match_expressions: Many[Requirement] = ()

    def __post_init__(self) -> None:
        if self.match_labels is None:
            force_setattr(self, "match_labels", {})
        if self.match_expressions is None:
            force_setattr(self, "match_expressions", ())

    def __hash__(self) -> int:
        return hash((frozenset(self.match_labels.items()), self.match_expressions))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet every label and every expression."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            expression.operator not in ("Gt", "Lt") and expression.matches(labels)
            for expression in self.match_expressions
        )


class NodeSelectorTerm(Struct, rename="camel", frozen=True, gc=False):
    """One term of required node affinity: all of it must hold. An empty term picks no node."""

    match_expressions: Many[Requirement] = ()
    match_fields: Many[Requirement] = ()

    def __post_init__(self) -> None:
        if self.match_expressions is None:
            force_setattr(self, "match_expressions", ())
        if self.match_fields is None:
            force_setattr(self, "match_fields", ())

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        """Whether the node with these labels and this name meets the term.

        Fields: `metadata.name` is the only one, In and NotIn take exactly one value (component-helpers,
        nodeaffinity).
        """
        if not self.match_expressions and not self.match_fields:
            return False
        fields = {"metadata.name": name}
        return all(expression.matches(labels) for expression in self.match_expressions) and all(
            field.operator in ("In", "NotIn") and len(field.values) == 1 and field.matches(fields)
            for field in self.match_fields
        )


class NodeSelector(Struct, rename="camel", frozen=True, gc=False):
    """v1.NodeSelector: its terms are alternatives. Without any term it picks no node."""

    node_selector_terms: Many[NodeSelectorTerm] = ()

    def __post_init__(self) -> None:
        if self.node_selector_terms is None:
            force_setattr(self, "node_selector_terms", ())

    def matches(self, labels: Mapping[str, str], name: str) -> bool:
        """Whether the node with these labels and this name meets at least one term."""
        return any(term.matches(labels, name) for term in self.node_selector_terms)
