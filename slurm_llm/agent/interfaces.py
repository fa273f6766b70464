"""Addresses of this node's network interfaces, from the kernel alone."""

import fcntl
import socket
import struct
import sys
from typing import Dict, List

SIOCGIFADDR = 0x8915
IF_INET6 = "/proc/net/if_inet6"


def names() -> List[str]:
    """Return the names of the interfaces; /sys may show those of another network namespace."""
    try:
        return sorted(name for _, name in socket.if_nameindex())
    except OSError:
        return []


def ipv4(name: str) -> str:
    """Return the IPv4 address of an interface (netdevice(7)); empty when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def ipv6(name: str) -> str:
    """Return the first IPv6 address of an interface that is valid beyond its link; empty when it has none."""
    try:
        with open(IF_INET6) as stream:
            rows = [row.split() for row in stream]
    except OSError:
        return ""
    found = [row[0] for row in rows if len(row) == 6 and row[5] == name and row[3] != "20"]
    return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(found[0])) if found else ""


def address(name: str, family: str = "any") -> str:
    """Return the address of an interface, IPv4 first; empty when it has none of the family, `ipv4` or `any`."""
    return ipv4(name) or ("" if family == "ipv4" else ipv6(name))


def addresses() -> Dict[str, str]:
    """Return the address of every interface, an empty text for those that have none."""
    return {name: address(name) for name in names()}


def main(interface: str, family: str) -> int:
    """Print the address of `interface`, IPv4 first; 1 with the interfaces that there are when it has none."""
    own = address(interface, family)
    if own:
        print(own)
        return 0
    known = ", ".join(("%s %s" % pair).strip() for pair in addresses().items())
    text = "slurm_llm: interface %s has no address here (network.interface in the site profile); there are: %s"
    print(text % (interface, known), file=sys.stderr)
    return 1
