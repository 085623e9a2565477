package uncharged

import (
	"bytes"
	"io"
	"os"
	"strconv"
)

// The largest amount of memory that one of each kind takes without being charged: 272 KB for netlink (the default buffer
// and one reply), 68 KB for a datagram, 5 KB for a TCP socket when the limit of the cgroup is reached (and two of them for
// one call, since a program can connect to itself), and 129 connections of about 10 KB for a listening socket. A lock
// takes 192 bytes, and the machine code of the longest seccomp filter less than 64 KB.
const (
	netlinkCost  = 272 << 10
	datagramCost = 68 << 10
	streamCost   = 10 << 10
	listenerCost = 1300 << 10
	lockCost     = 192
	filterCost   = 64 << 10

	maxNetlink = 16
	maxFilters = 64 // of any sandbox: their machine code counts towards one limit of the host
	maxInt     = 1 << 30

	protocolsFile  = "/proc/net/protocols"
	statisticsFile = "/proc/net/sockstat"
	locksFile      = "/proc/locks"
)

// netlinks returns the number of netlink sockets in the sandbox.
func netlinks() int { return protocols()["NETLINK"] }

// datagrams returns the number of UDP sockets, plus that of TCP sockets that are neither connected nor listen: the kernel
// counts a UDP socket as one only when it has a port.
func datagrams() int {
	counted := protocols()
	return internetSockets() - counted["TCP"] - counted["TCPv6"]
}

// internetSockets returns the number of TCP and UDP sockets, also of those that are closed and still have data to send.
func internetSockets() int {
	text, err := os.ReadFile(statisticsFile)
	if err != nil {
		return maxInt
	}
	for _, line := range bytes.Split(text, []byte("\n")) {
		if fields := bytes.Fields(line); len(fields) == 3 && string(fields[0]) == "sockets:" {
			counted := protocols()
			return number(fields[2]) - counted["NETLINK"] - counted["UNIX"] - counted["UNIX-STREAM"]
		}
	}
	return maxInt
}

// protocols returns the number of sockets of each protocol.
func protocols() map[string]int {
	text, err := os.ReadFile(protocolsFile)
	if err != nil {
		return map[string]int{"NETLINK": maxInt}
	}
	found := map[string]int{}
	for _, line := range bytes.Split(text, []byte("\n")) {
		if fields := bytes.Fields(line); len(fields) > 2 {
			found[string(fields[0])] = number(fields[2])
		}
	}
	return found
}

func number(text []byte) int {
	n, _ := strconv.Atoi(string(text))
	return n
}

// locks returns the number of record locks in the sandbox, and of those that a process waits for.
func locks() int {
	text, err := os.ReadFile(locksFile)
	if err != nil {
		return maxInt
	}
	return bytes.Count(text, []byte(" POSIX "))
}

// listeners returns the number of listening TCP sockets. They come first in the kernel's lists.
func listeners() int { return listening("/proc/net/tcp") + listening("/proc/net/tcp6") }

func listening(path string) int {
	const listen = "0A"
	file, err := os.Open(path)
	if err != nil {
		return 0 // no IPv6
	}
	defer file.Close()
	count, buffer, rest := 0, make([]byte, 8<<10), []byte(nil)
	for {
		n, err := file.Read(buffer)
		rest = append(rest, buffer[:n]...)
		for {
			end := bytes.IndexByte(rest, '\n')
			if end < 0 {
				break
			}
			fields := bytes.Fields(rest[:end])
			rest = rest[end+1:]
			if len(fields) < 4 || string(fields[3]) == "st" {
				continue
			}
			if string(fields[3]) != listen {
				return count
			}
			count++
		}
		if err == io.EOF || n == 0 {
			return count
		}
	}
}
