"""`relay.py ADDRESS ARGUMENTS…`: stand for a program that the host of `relayed.py` there forks."""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as host:
    host.connect(sys.argv[1])
    asked = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()  # noqa: PTH109  at once
    socket.send_fds(host, [len(asked).to_bytes(4, "big")], [0, 1, 2])
    host.sendall(asked)
    for stream in range(3):
        os.close(stream)
    ended = int(host.recv(10) or b"1")  # as multiprocessing has it: minus the number of a signal
if ended < 0:
    os.kill(os.getpid(), -ended)
os._exit(ended)
