"""A small internet for the tests, on this machine alone and with no uplink.

Two network namespaces joined by a veth pair. In the *host side* a whole Skerry server runs, with an /etc/resolv.conf
and a CA of this world; on its loopback and own addresses wait canaries. In the *far side* every IPv4 and IPv6 address
that there is belongs to the test: a few of them serve (`places`), and each packet that comes for any other is written
down. So whatever gets past a wall hits a canary, and no packet can leave this machine."""
