"""`liveness demo`: a server and workers as real processes, some of them killed, and a ledger of what became of the work.

plan       what is played: how many, how long, with which leases
dataset    the work: files to hash
worker     a process that hashes, and notes down what it does (notes)
tether     how no process outlives the demo
cast       starting, killing, freezing and ending the processes
record     what the server knows, read through its API
story      what happened, in plain words
plot       who is killed and frozen, and when
view       the picture of a moment
ledger     the notes of the workers against the server's record
show       all of it together
"""
