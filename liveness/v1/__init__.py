"""Generated from proto/liveness/v1 by `make proto`; never edited by hand."""
