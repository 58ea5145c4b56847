"""The policy in force for each namespace: what was set for it, over what was set for all, over the built-in."""

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
        """`served`: the only namespaces that there are; empty for any."""
        self._built_in = built_in
        self._served = frozenset(served)
        self._overrides = {namespace: dict(values) for namespace, values in overrides.items()}
        self._policies: dict[str, Policy] = {}

    def admit(self, namespace: str) -> None:
        """Refuse a namespace that is not served here. The empty one, which stands for all, is."""
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
        """What would be in force; raises `InvalidField` if it makes no sense."""
        base = self._built_in
        if namespace != ALL_NAMESPACES:
            base = override_policy(base, self.overrides(ALL_NAMESPACES))
        return override_policy(base, overrides)

    def check_default(self, overrides: Mapping[str, float]) -> None:
        """Refuse a default under which some namespace's own settings would make no sense."""
        base = override_policy(self._built_in, overrides)
        for namespace, own in self._overrides.items():
            if namespace != ALL_NAMESPACES:
                override_policy(base, own)

    def replace(self, namespace: str, overrides: Mapping[str, float]) -> None:
        self._overrides[namespace] = dict(overrides)
        self._policies.clear()

    def namespaces(self) -> list[str]:
        """Those with settings of their own."""
        return [namespace for namespace in self._overrides if namespace != ALL_NAMESPACES]
