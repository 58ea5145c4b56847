"""The pure core: values and functions over them. Standard library only, no clock, no I/O, no randomness.

Read in this order: `keys`, `worker`, `commands`, `events`, `decider`, `fold`, `plain_renewal`, `reactions`,
`worker_control`, `activity`, `activity_decider`, `policy`, `errors`.
"""
