"""A process that speaks systemd's protocol only."""

import os
import signal
import socket

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # before anybody can send it
address = os.environ["NOTIFY_SOCKET"]
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.connect("\0" + address[1:] if address.startswith("@") else address)
sender.send(b"STATUS=loading")
if os.environ.get("WAIT_FOR_USR1"):
    signal.sigwait([signal.SIGUSR1])
is_watched = os.environ.get("WATCHDOG_PID") == str(os.getpid())
sender.send(f"READY=1\nSTATUS=at work, watched for {is_watched and os.environ['WATCHDOG_USEC']} µs".encode())
signal.pause()
