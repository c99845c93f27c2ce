"""A script: serves S3 from memory, prints its address, and ends with the process whose number is its argument."""

import os
import select
import sys

from moto.server import ThreadedMotoServer

if __name__ == "__main__":
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
    select.select([os.pidfd_open(int(sys.argv[1]))], [], [])
    server.stop()
