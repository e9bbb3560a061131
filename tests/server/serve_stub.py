"""A stub server as a process of its own, for signals: ``python serve_stub.py FOLDER DRAIN_S [fault]``."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from harness import make_service
from stub_engine import say

from tandem.core.errors import EngineFault
from tandem.server.config import ServerConfig
from tandem.server.run import bind, serve, server_url


def main(folder: str, drain_s: str, *more: str) -> int:
    logging.basicConfig(level=logging.INFO)
    config = ServerConfig(port=0, drain_timeout_s=float(drain_s), exit_on_fault="fault" in more)
    listener = bind(config)
    scripts = {
        "story": say("endless words ", repeats=True, ends=False, token_delay_s=0.01),
        "short": say("a few words in about half a second", token_delay_s=0.015),
        "break": say("abc", engine_fault_at=1),
    }
    service, _ = make_service(Path(folder), scripts)
    print(server_url(listener), flush=True)
    try:
        serve(service, config, listener)
    except EngineFault as fault:
        print(f"fault: {fault}", flush=True)
        return 1
    print("ended in order", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
