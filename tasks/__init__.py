"""What happens later: timers that end leases, and stored queues that move activities on.

A task is a value; beside it stand `validate` (is it still true?) and `execute`. Nothing is ever cancelled: a task
that time has overtaken finds itself stale and is dropped.
"""
