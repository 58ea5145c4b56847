"""`liveness demo`: run a server and workers as real processes, kill some of them, and account for all the work.

plan            the size of the demo, its timing and its leases
dataset         the work: files to hash
workload        schedules the work
worker          a worker process that hashes files and notes what it does
notes           the notes of the worker processes, in files
note_collector  reads the notes of all workers
child_process   runs a process that ends with the demo
processes       starts, kills, freezes and stops the processes
server_client   reads the server's state through its API
timeline        the events of the demo, as sentences
fault_script    chooses which workers to kill and freeze, and when
view            draws one frame
ledger          compares the workers' notes with the server's records
demo_run        runs the whole demo
"""
