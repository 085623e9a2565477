// Package relay connects stdin and stdout of a command with sockets inside a sandbox, for the forwarding of SSH: `dial`
// with one connection, `listen` with a listener. Both run as the user of the login and are no privilege of the keeper.
package relay

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"
)

const dialTimeout = 30 * time.Second

// Dial connects to `tcp HOST PORT` or `unix PATH` and copies both ways. It returns the exit code.
func Dial(args []string) int {
	network, address, err := parse(args)
	if err != nil {
		return fail("dial", err)
	}
	conn, err := net.DialTimeout(network, address, dialTimeout)
	if err != nil {
		return fail("dial", err)
	}
	// One byte reports the connection, so that a client learns of a failure before its channel opens.
	if _, err = os.Stdout.Write([]byte{'\n'}); err != nil {
		return 1
	}
	go func() {
		_, _ = io.Copy(conn, os.Stdin)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	}()
	if _, err = io.Copy(os.Stdout, conn); err != nil {
		return fail("dial", err)
	}
	return 0
}

func parse(args []string) (network, address string, err error) {
	switch {
	case len(args) == 2 && args[0] == "unix" && args[1] != "":
		return "unix", args[1], nil
	case len(args) == 3 && args[0] == "tcp":
		port, err := strconv.ParseUint(args[2], 10, 16)
		return "tcp", net.JoinHostPort(args[1], strconv.FormatUint(port, 10)), err
	}
	return "", "", fmt.Errorf("usage: tcp HOST PORT | unix PATH")
}

func fail(role string, err error) int {
	fmt.Fprintln(os.Stderr, role+": "+err.Error())
	return 1
}
