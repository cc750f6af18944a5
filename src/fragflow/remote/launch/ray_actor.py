"""A worker process inside a Ray actor. Ray places and starts it; messages do not go through Ray."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionInfo:
    """Data for an actor to reach its coordinator; sent by Ray, so only to cluster members."""

    endpoint: str
    server_key: str
    label: str
    directory: str
    """the name of the run's directory on every host"""
    interface: str | None
    """the address to be reached at; None: that of the node"""
    ports: tuple[int, int]


class WorkerActor:
    """The Ray actor that hosts one worker process."""

    def serve(self, connection: ConnectionInfo) -> bool:
        """Works until the coordinator says "end"; False if the coordinator is gone before that."""
        # Imported here: Ray reads this module before the process's environment is set up.
        import ray
        import zmq

        from fragflow.remote.protocol.control_channel import ControlChannel
        from fragflow.remote.protocol.jobs import CODEC
        from fragflow.remote.transport.endpoint import Network, open_endpoint
        from fragflow.remote.worker.main import serve

        directory = own_directory(connection.directory)
        control = ControlChannel(zmq.Context(), CODEC)
        control.connect(connection.endpoint, connection.server_key)
        node = ray.get_runtime_context().get_node_id()
        interface = connection.interface or ray.util.get_node_ip_address()
        network = Network(
            interface=interface, first_port=connection.ports[0], last_port=connection.ports[1]
        )
        endpoint, address = open_endpoint(
            directory, connection.label, host_of(node, directory), network
        )
        return serve(control, endpoint, address, network, is_orphan=lambda: False)


def own_directory(name: str) -> Path:
    """Makes a run's directory on this host, for this user only; it is removed after the run."""
    from fragflow.remote.launch.cleanup import employ
    from fragflow.remote.launch.local import shared_memory

    directory = Path(shared_memory() or tempfile.gettempdir()) / name
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or directory.is_symlink():
        raise PermissionError(f"{directory} belongs to someone else, or others can enter it")
    employ(directory)
    return directory


def host_of(node: Any, directory: Path) -> str:
    """A name of the host: processes with the same one are on the same node, and share files."""
    found = directory.stat()
    return f"{node}:{found.st_dev}:{found.st_ino}"
