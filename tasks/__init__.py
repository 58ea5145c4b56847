"""Work that happens later: timers that end leases, and stored queues that reschedule activities.

A task is a value that says what to do. Nothing is ever cancelled: a task that no longer applies is found stale and is
dropped. A timer is derived from state when it fires, so it cannot be stale in any other way than that its worker or
activity needs none; a stored task carries a stamp, and `validate` compares it with the state.
"""
