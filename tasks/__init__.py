"""Work that happens later: timers that end leases, and stored queues that reschedule activities.

A task is a value that says what to do. Nothing is ever cancelled: a task that no longer applies is found stale and is
dropped. A timer is derived from state when it fires: it is stale only if its worker or activity needs no timer any
more. A stored task carries a stamp, and `validate` compares the stamp with the state.
"""
