"""The policy in force for each namespace: its own settings override those for all namespaces, which override the built-in
policy."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from liveness.domain.errors import NamespaceNotFound
from liveness.domain.policy import DEFAULT_POLICY, Policy, override_policy

ALL_NAMESPACES = ""
"""The name under which settings for all namespaces are kept."""


class Policies:
    def __init__(
        self,
        overrides: Mapping[str, Mapping[str, float]],
        served: Collection[str] = (),
        built_in: Policy = DEFAULT_POLICY,
    ) -> None:
        """`served`: the only namespaces that are admitted; if empty, all are."""
        self._built_in = built_in
        self._served = frozenset(served)
        self._overrides = {namespace: dict(values) for namespace, values in overrides.items()}
        self._policies: dict[str, Policy] = {}

    def admit(self, namespace: str) -> None:
        """Refuse a namespace that is not served here. The empty name, which stands for all namespaces, is admitted."""
        if self._served and namespace and namespace not in self._served:
            raise NamespaceNotFound(namespace=namespace, known=", ".join(sorted(self._served)))

    def of(self, namespace: str) -> Policy:
        # Only names that were configured are kept: clients may send any number of others.
        name = namespace if namespace in self._overrides else ALL_NAMESPACES
        policy = self._policies.get(name)
        if policy is None:
            policy = self._policies[name] = self.preview(name, self.overrides(name))
        return policy

    def overrides(self, namespace: str) -> dict[str, float]:
        return self._overrides.get(namespace, {})

    def preview(self, namespace: str, overrides: Mapping[str, float]) -> Policy:
        """The policy that these overrides would give. Raises `InvalidField` if they contradict each other."""
        base = self._built_in
        if namespace != ALL_NAMESPACES:
            base = override_policy(base, self.overrides(ALL_NAMESPACES))
        return override_policy(base, overrides)

    def check_default(self, overrides: Mapping[str, float]) -> None:
        """Refuse overrides for all namespaces that contradict the settings of some namespace."""
        base = override_policy(self._built_in, overrides)
        for namespace, own in self._overrides.items():
            if namespace != ALL_NAMESPACES:
                override_policy(base, own)

    def replace(self, namespace: str, overrides: Mapping[str, float]) -> None:
        self._overrides[namespace] = dict(overrides)
        self._policies.clear()

    def namespaces(self) -> list[str]:
        """The namespaces that have settings of their own."""
        return [namespace for namespace in self._overrides if namespace != ALL_NAMESPACES]
