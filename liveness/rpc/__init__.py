"""What all gRPC code shares: how errors look on the wire, and traces of calls."""
