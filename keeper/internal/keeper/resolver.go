package keeper

import (
	"bytes"
	"io"
	"net/netip"
	"os"
	"syscall"
)

const (
	resolvConf    = "/etc/resolv.conf"
	maxResolvConf = 64 << 10
)

// writeResolvConf makes programs send DNS queries to the given server. The host answers queries to any address, so the
// keeper keeps a file that names a non-loopback server as the image or a user made it. It replaces a file that is
// missing, empty, a dangling link, or meant for a resolver on another machine's loopback. If root inside obstructs
// this, only root inside loses.
func writeResolvConf(server string) {
	if server == "" || namesExternalServer(readBounded(resolvConf)) {
		return
	}
	draft := resolvConf + ".skerry"
	_ = os.Remove(draft)
	// Repeat soon, because a query that meets a restart of the server's network worker gets no answer, and repeat
	// often enough to outlast that restart on a busy host. 5 is the resolver's maximum.
	text := "nameserver " + server + "\noptions timeout:1 attempts:5\n"
	f, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return
	}
	_, err = f.WriteString(text)
	_ = f.Chmod(0o644)
	_ = f.Close()
	if err == nil {
		err = os.Rename(draft, resolvConf)
	}
	if err != nil {
		_ = os.Remove(draft)
	}
}

// namesExternalServer reports whether a resolv.conf names an IPv4 server that is not a loopback address.
func namesExternalServer(text []byte) bool {
	for _, line := range bytes.Split(text, []byte("\n")) {
		words := bytes.Fields(line)
		if len(words) < 2 || string(words[0]) != "nameserver" {
			continue
		}
		address, err := netip.ParseAddr(string(words[1]))
		if err == nil && address.Is4() && !address.IsLoopback() && !address.IsUnspecified() {
			return true
		}
	}
	return false
}

// readBounded reads a regular file. It never waits for a FIFO or a device in its place.
func readBounded(path string) []byte {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(f, maxResolvConf))
	return text
}
