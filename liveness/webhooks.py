"""Check the signature of a webhook. Public name of `liveness.integrations.webhook.signature`; see docs/webhook.md."""

from liveness.integrations.webhook.signature import (
    DELIVERY_HEADER,
    SIGNATURE_HEADER,
    TOLERANCE_S,
    sign,
    verify_signature,
)

__all__ = ["DELIVERY_HEADER", "SIGNATURE_HEADER", "TOLERANCE_S", "sign", "verify_signature"]
